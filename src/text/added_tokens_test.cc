#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"

namespace quire {
namespace {

// Parts as text, tokens in brackets with their ids: "a[1:<s>]b".
std::string Show(std::string_view text, const std::vector<TextPart>& parts) {
  std::string shown;
  for (const TextPart& part : parts) {
    const std::string_view span = part.span.In(text);
    shown += part.token ? fmt::format("[{}:{}]", *part.token, span) : fmt::format("{}|", span);
  }
  return shown;
}

std::string SplitShown(std::vector<AddedToken> tokens, std::string_view text,
                       SpecialTokens special = SpecialTokens::kParse) {
  const std::vector<std::string> contents(tokens.size());
  return Show(text, AddedTokens(std::move(tokens), contents).SplitRaw(text, special));
}

TEST(AddedTokensTest, TheLeftmostAndThenTheLongestIsFound) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "<a"},
                                          {.id = 2, .content = "<ab>"},
                                          {.id = 3, .content = "ab>c"},
                                          {.id = 4, .content = "c"}};
  EXPECT_EQ(SplitShown(tokens, "x<ab>c<ax"), "x|[2:<ab>][4:c][1:<a]x|");
  EXPECT_EQ(SplitShown(tokens, "<<ab"), "<|[1:<a]b|");
  EXPECT_EQ(SplitShown(tokens, "ab>c"), "[3:ab>c]");
  EXPECT_EQ(SplitShown(tokens, ""), "");
  EXPECT_EQ(SplitShown({}, "x"), "x|");
}

TEST(AddedTokensTest, TokensTakeTheSpaceTheySay) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "L", .lstrip = true},
                                          {.id = 2, .content = "R", .rstrip = true},
                                          {.id = 3, .content = "N"}};
  EXPECT_EQ(SplitShown(tokens, "a \n\u3000L b"), "a|[1: \n\u3000L] b|");
  EXPECT_EQ(SplitShown(tokens, "a R \t b"), "a |[2:R \t ]b|");
  EXPECT_EQ(SplitShown(tokens, "a N b"), "a |[3:N] b|");
  // The first takes it, and the second has none to take.
  EXPECT_EQ(SplitShown(tokens, "R  L"), "[2:R  ][1:L]");
  EXPECT_EQ(SplitShown(tokens, "  L"), "[1:  L]");
}

TEST(AddedTokensTest, ASingleWordStandsAlone) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "word", .single_word = true}};
  EXPECT_EQ(SplitShown(tokens,
                       "word words sword é"
                       "word word_ (word) word"),
            "[1:word] words sword éword word_ (|[1:word]) |[1:word]");
}

TEST(AddedTokensTest, ControlTokensCanBeLeftAsText) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "<c>", .control = true},
                                          {.id = 2, .content = "<t>"}};
  EXPECT_EQ(SplitShown(tokens, "a<c><t>", SpecialTokens::kParse), "a|[1:<c>][2:<t>]");
  EXPECT_EQ(SplitShown(tokens, "a<c><t>", SpecialTokens::kLeaveAsText), "a<c>|[2:<t>]");
}

TEST(AddedTokensTest, NormalizedTokensAreFoundAsTheNormalizerMakesThem) {
  const std::vector<std::string> contents = {"", "_b"};
  const AddedTokens tokens(
      {{.id = 1, .content = "a"}, {.id = 2, .content = " b", .normalized = true}}, contents);
  EXPECT_EQ(Show("a b_b", tokens.SplitRaw("a b_b", SpecialTokens::kParse)), "[1:a] b_b|");
  EXPECT_EQ(Show("a b_b", tokens.SplitNormalized("a b_b", SpecialTokens::kParse)), "a b|[2:_b]");
  EXPECT_EQ(tokens.Find(2)->content, " b");
  EXPECT_EQ(tokens.Find(3), nullptr);
}

}  // namespace
}  // namespace quire
