#include "local/hub_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "io/test_files.h"

namespace quire {
namespace {

std::string HubCacheWith(const std::map<std::string, std::string>& variables) {
  return HubCacheFolder([&](const char* name) -> const char* {
           const auto found = variables.find(name);
           return found == variables.end() ? nullptr : found->second.c_str();
         })
      .string();
}

TEST(HubCacheTest, TheFolderIsWhatTheFirstVariableThatIsSetSays) {
  EXPECT_EQ(HubCacheWith({{"HOME", "/u"}}), "/u/.cache/huggingface/hub");
  EXPECT_EQ(HubCacheWith({{"HOME", "/u"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(HubCacheWith({{"HOME", "/u"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/h"}}), "/h/hub");
  EXPECT_EQ(HubCacheWith({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}), "/old");
  EXPECT_EQ(HubCacheWith({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/c"}}), "/c");
  EXPECT_EQ(HubCacheWith({{"HF_HUB_CACHE", ""}, {"HF_HOME", "/h"}}), "/h/hub");
}

TEST(HubCacheTest, AnOwnerAndANameAreAHubName) {
  EXPECT_TRUE(IsHubName("deepseek-ai/DeepSeek-V2-Lite"));
  EXPECT_TRUE(IsHubName("a/b.c_1"));
  for (const char* text : {"", "a", "a/", "/b", "a/b/c", "./b", "../b", "a/..", "a b/c", "~/b"}) {
    EXPECT_FALSE(IsHubName(text)) << text;
  }
}

TEST(HubCacheTest, AModelIsFoundWhereMainPointsAndOnlyWithAConfig) {
  const TempDir cache;
  const std::filesystem::path model = cache.path() / "models--a--b";
  EXPECT_EQ(FindInHubCache(cache.path(), "a/b"), std::nullopt);
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots" / "c0ffee");
  cache.Write("models--a--b/refs/main", "c0ffee");
  EXPECT_EQ(FindInHubCache(cache.path(), "a/b"), std::nullopt);
  cache.Write("models--a--b/snapshots/c0ffee/config.json", "{}");
  EXPECT_EQ(FindInHubCache(cache.path(), "a/b"), model / "snapshots" / "c0ffee");
  EXPECT_EQ(FindInHubCache(cache.path(), "a/c"), std::nullopt);
  // What refs/main holds is one name, and leads nowhere else.
  cache.Write("models--a--b/refs/main", "../../../..");
  EXPECT_EQ(FindInHubCache(cache.path(), "a/b"), std::nullopt);
}

}  // namespace
}  // namespace quire
