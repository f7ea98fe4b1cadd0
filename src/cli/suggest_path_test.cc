#include "cli/suggest_path.h"

#include <gtest/gtest.h>

#include <string>

#include "io/test_files.h"

namespace quire::cli {
namespace {

TEST(SuggestPathTest, APathIsComparedWhereItIsNotThere) {
  const TempDir folder;
  std::filesystem::create_directories(folder.path() / "models" / "lite");
  folder.Write("models/lite/prompt.txt", "");
  const std::string file = (folder.path() / "models" / "lite" / "prompt.txt").string();
  const std::string meant = "; did you mean \"" + file + "\"?";
  EXPECT_EQ(DidYouMeanPath(folder.path() / "models" / "lite" / "promt.txt"), meant);
  EXPECT_EQ(DidYouMeanPath(folder.path() / "modles" / "lite" / "prompt.txt"), meant);
  EXPECT_EQ(DidYouMeanPath(folder.path() / "modles" / "lite" / "other.txt"), "");
  EXPECT_EQ(DidYouMeanPath(file), "");
  EXPECT_EQ(DidYouMeanPath(""), "");
}

}  // namespace
}  // namespace quire::cli
