#include "serve/page.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace quire {
namespace {

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(PageTest, EveryFileOfTheFolderIsServedByteForByte) {
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_PAGE)) {
    const std::string name = entry.path().filename().string();
    if (name == "embed.cmake") continue;
    ++num_files;
    const PageFile* file = FindPageFile(name == "index.html" ? "/" : "/" + name);
    ASSERT_NE(file, nullptr) << name;
    EXPECT_EQ(file->bytes, ReadAll(entry.path())) << name;
    EXPECT_FALSE(file->bytes.empty()) << name;
  }
  EXPECT_EQ(num_files, PageFiles().size());
}

TEST(PageTest, ContentTypesAreThoseABrowserRunsUnderNosniff) {
  EXPECT_EQ(FindPageFile("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(FindPageFile("/app.js")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(FindPageFile("/style.css")->content_type, "text/css; charset=utf-8");
}

TEST(PageTest, NothingElseIsFound) {
  for (const char* path :
       {"", "//", "/index.html", "/app.js/", "app.js", "/APP.JS", "/embed.cmake"}) {
    EXPECT_EQ(FindPageFile(path), nullptr) << path;
  }
}

TEST(PageTest, IsSmallAndAsksNoOtherHost) {
  size_t num_bytes = 0;
  for (const PageFile& file : PageFiles()) {
    num_bytes += file.bytes.size();
    // The namespaces of SVG and MathML are names, not addresses.
    std::string text(file.bytes);
    for (const std::string name_only :
         {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}) {
      if (const size_t at = text.find(name_only); at != std::string::npos) {
        text.erase(at, name_only.size());
      }
    }
    EXPECT_EQ(text.find("://"), std::string::npos) << file.path;
    EXPECT_EQ(text.find("innerHTML"), std::string::npos) << file.path;
  }
  EXPECT_LT(num_bytes, 120'000u);
}

}  // namespace
}  // namespace quire
