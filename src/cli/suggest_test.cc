#include "cli/suggest.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "io/test_files.h"

namespace quire::cli {
namespace {

const std::array<std::string, 5> kNamesToSuggest = {"generate", "chat", "serve", "score", "bench"};

std::string Suggested(std::string_view word) {
  return NearestName(word, kNamesToSuggest).value_or("none");
}

TEST(SuggestTest, TheNearestNameIsSuggestedIfItIsNear) {
  EXPECT_EQ(Suggested("serv"), "serve");
  EXPECT_EQ(Suggested("sevre"), "serve");
  EXPECT_EQ(Suggested("scroe"), "score");
  EXPECT_EQ(Suggested("genrate"), "generate");
  EXPECT_EQ(Suggested("caht"), "chat");
  for (const char* word : {"", "x", "zz", "run", "model", "abcdefgh"}) {
    EXPECT_EQ(Suggested(word), "none") << word;
  }
  EXPECT_EQ(Suggested(std::string(100000, 'a')), "none");
}

TEST(SuggestTest, TheOnlyNameThatBeginsLikeThisIsSuggested) {
  EXPECT_EQ(Suggested("gen"), "generate");
  EXPECT_EQ(Suggested("s"), "none");
  EXPECT_EQ(DidYouMean("gen", kNamesToSuggest), "; did you mean generate?");
  EXPECT_EQ(DidYouMean("zz", kNamesToSuggest), "");
}

TEST(SuggestTest, APathIsComparedWhereItIsNotThere) {
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
