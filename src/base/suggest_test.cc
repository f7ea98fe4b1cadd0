#include "base/suggest.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace quire {
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
  for (const char* word : {"", "x", "zz", "run", "model", "cope", "abcdefgh"}) {
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

}  // namespace
}  // namespace quire
