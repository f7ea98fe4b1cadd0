#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "testing/error_message.h"
#include "text/regex_dialect.h"
#include "text/utf8.h"

namespace quire {
namespace {

using testing::ErrorMessage;

std::vector<std::string> Matches(const Regex& regex, std::string_view text) {
  std::vector<std::string> matches;
  RegexScan scan(regex);
  scan.Start(text);
  while (const auto match = scan.Next()) matches.emplace_back(match->In(text));
  return matches;
}

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  return Matches(Regex(pattern, "here"), text);
}

std::string PatternRefusal(std::string_view pattern) {
  return ErrorMessage(ErrorCode::kInvalidArgument, [&] { Regex(pattern, "file: key"); });
}

using Strings = std::vector<std::string>;

TEST(RegexTest, MatchesComeFromLeftToRight) {
  EXPECT_EQ(Matches(R"(\p{N}{1,3})", "a12345b6"), (Strings{"123", "45", "6"}));
  EXPECT_EQ(Matches(R"(\s+(?!\S)|\s+)", "a   b "), (Strings{"  ", " ", " "}));
  EXPECT_EQ(Matches("(?i:'s|'LL)", "'S'll's"), (Strings{"'S", "'ll", "'s"}));
  EXPECT_EQ(Matches("[一-龥]+", "ab你好c"), (Strings{"你好"}));
  EXPECT_EQ(Matches("x", ""), Strings{});
}

TEST(RegexTest, AnEmptyMatchBehindAMatchDoesNotCount) {
  EXPECT_EQ(Matches("a*", "baac"), (Strings{"", "aa", ""}));
  EXPECT_EQ(Matches("a*", "é"), (Strings{"", ""}));
}

TEST(RegexTest, ALiteralIsNoPattern) {
  EXPECT_EQ(Matches(Regex::Literal("a.[", "here"), "aba.[a.["), (Strings{"a.[", "a.["}));
}

TEST(RegexTest, LinesEndAtEveryNewline) {
  EXPECT_EQ(Matches("^a|b$", "ab\nab\r\nb"), (Strings{"a", "b", "a", "b"}));
}

TEST(RegexTest, SpaceIsUnicodesWhiteSpace) {
  const Regex space(R"(\s)", "here");
  const Regex not_space(R"(\S)", "here");
  const Regex in_class(R"([\sx])", "here");
  for (char32_t c = 0; c < 0x3100; ++c) {
    if (c == 'x') continue;
    std::string text;
    AppendUtf8(c, text);
    ASSERT_EQ(!Matches(space, text).empty(), IsWhiteSpace(c)) << static_cast<uint32_t>(c);
    ASSERT_EQ(Matches(not_space, text).empty(), IsWhiteSpace(c));
    ASSERT_EQ(!Matches(in_class, text).empty(), IsWhiteSpace(c));
  }
}

TEST(RegexTest, SpaceAtTheEndIsFoundAtOnce) {
  EXPECT_EQ(Matches(R"(\s+$)", "a  b  "), (Strings{"  "}));
  EXPECT_EQ(Matches(R"(\s+$)", "a \n b \n \n c"), (Strings{" ", " \n "}));
  // From every one of its characters it would take 10^11 steps.
  EXPECT_EQ(Matches(R"(\s+$)", std::string(500'000, ' ') + "1"), Strings{});
}

TEST(RegexTest, AnIntersectionOfClassesIsALookahead) {
  EXPECT_EQ(TranslateRegex(R"([\p{L}&&[^\p{Han}]]+)", "here"), R"((?:(?![\p{sc:Han}])[\p{L}])+)");
  EXPECT_EQ(TranslateRegex("[a-z&&[aeiou]]", "here"), "(?:(?=[aeiou])[a-z])");
  EXPECT_EQ(Matches(R"([\p{L}&&[^\p{Han}]]+)", "ab你c"), (Strings{"ab", "c"}));
}

TEST(RegexTest, EscapesThatDifferAreRewritten) {
  EXPECT_EQ(TranslateRegex(R"(\d\D\v\u00e9\p{^L}\P{^Lu}\p{Greek}\x{41}\.)", "here"),
            R"(\p{Nd}\P{Nd}\x0b\x{00e9}\P{L}\p{Lu}\p{sc:Greek}\x{41}\.)");
  EXPECT_EQ(TranslateRegex(R"(\A(?:a|\[)[\]\-^]{2,3}?\z)", "here"), R"(\A(?:a|\[)[\]\-^]{2,3}?\z)");
}

TEST(RegexTest, WhatMayMeanSomethingElseIsRefused) {
  EXPECT_EQ(PatternRefusal(R"(a\b)"),
            R"(file: key: "\\b" at byte 1 of the pattern "a\\b" is not supported)");
  for (const std::string_view pattern :
       {R"(\w)",   R"(\h)",      R"(\R)",       R"(\K)",     R"(\1)",  R"(\Qa\E)",  "\\",
        R"([\S])", "(?<name>a)", "(?i)a",       "(?m:a)",    "(?#a)",  "(*ACCEPT)", "a{,3}",
        "a{2}+",   "[a[b]]",     "[[:alpha:]]", "[^a&&[b]]", "[a&&b]", "[a&&[b]c]", "[]",
        "[a",      R"(\u12)",    R"(\p{L)",     R"(\xff)"}) {
    EXPECT_TRUE(PatternRefusal(pattern).ends_with("is not supported")) << pattern;
  }
}

TEST(RegexTest, WhatIsNoPatternIsRefused) {
  EXPECT_EQ(
      PatternRefusal("a)"),
      "file: key: expected a regular expression, got \"a)\" (unmatched closing parenthesis, at "
      "byte 1)");
  EXPECT_NE(PatternRefusal(R"(\p{Klingon})").find("unknown property"), std::string::npos);
}

TEST(RegexTest, AMatchThatTakesTooManyStepsIsAnError) {
  const Regex slow("(?:a|a)*(?:a|a)*(?:a|a)*[bc]", "here");
  const std::string message = ErrorMessage(ErrorCode::kCapacityExceeded,
                                           [&] { (void)Matches(slow, std::string(2000, 'a')); });
  EXPECT_EQ(message,
            "the pattern \"(?:a|a)*(?:a|a)*(?:a|a)*[bc]\" cannot be matched against a text of 2000 "
            "bytes, from byte 0: match limit exceeded");
}

}  // namespace
}  // namespace quire
