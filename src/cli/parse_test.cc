#include "cli/parse.h"

#include <gtest/gtest.h>

#include "testing/error_message.h"

namespace quire::cli {
namespace {

using quire::testing::ErrorMessage;

std::string Refusal(std::string_view text) {
  return ErrorMessage(ErrorCode::kInvalidArgument, [&] { ParseInts("--n", text, 0, 9); });
}

TEST(ParseTest, AnIntegerIsTheWholeTextAndInRange) {
  EXPECT_EQ(ParseInt("--n", "-7", -7), -7);
  EXPECT_EQ(ParseInt("--n", "256", 1, 256), 256);
  for (const char* text : {"", "x", "1x", " 1", "+1", "1.0", "0", "257", "99999999999999999999"}) {
    EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { ParseInt("--n", text, 1, 256); }),
              "--n: expected an integer in 1..256, got \"" + std::string(text) + "\"");
  }
  EXPECT_EQ(ErrorMessage([] { ParseInt("--n", "0", 1); }),
            "--n: expected an integer of 1 or more, got \"0\"");
  EXPECT_EQ(ErrorMessage([] { ParseInt("--n", "x", std::numeric_limits<int64_t>::min()); }),
            "--n: expected an integer, got \"x\"");
}

TEST(ParseTest, AFractionIsAboveZeroAndUpToOne) {
  EXPECT_EQ(ParseFraction("--f", "0.85"), 0.85);
  EXPECT_EQ(ParseFraction("--f", "1"), 1.0);
  for (const char* text : {"", "0", "1.01", "-0.5", "nan", "inf", "0.5x"}) {
    EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { ParseFraction("--f", text); }),
              "--f: expected a number above 0 and up to 1, got \"" + std::string(text) + "\"");
  }
}

TEST(ParseTest, ANumberIsTheWholeTextAndWithinItsRange) {
  EXPECT_EQ(ParseNumber("--t", "0.5", 0, 2), 0.5);
  EXPECT_EQ(ParseNumber("--t", "0", 0, 2), 0);
  EXPECT_EQ(ParseNumber("--t", "2e0", 0, 2), 2);
  for (const char* text : {"", "x", "1x", " 1", "-0.1", "2.1", "nan", "inf"}) {
    EXPECT_EQ(ErrorMessage([&] { ParseNumber("--t", text, 0, 2); }),
              "--t: expected a number in 0..2, got \"" + std::string(text) + "\"");
  }
}

TEST(ParseTest, SecondsAreOfAMillisecondToADay) {
  EXPECT_EQ(ParseSeconds("--t", "0.001"), std::chrono::milliseconds(1));
  EXPECT_EQ(ParseSeconds("--t", "1.5"), std::chrono::milliseconds(1500));
  EXPECT_EQ(ParseSeconds("--t", "86400"), std::chrono::hours(24));
  EXPECT_EQ(ErrorMessage([] { ParseSeconds("--t", "0"); }),
            "--t: expected 0.001..86400 seconds, got 0");
  EXPECT_EQ(ErrorMessage([] { ParseSeconds("--t", "86401"); }),
            "--t: expected a number in 0..86400, got \"86401\"");
}

TEST(ParseTest, IntegersStandBetweenCommasOrSpacesOrInAnArray) {
  const std::vector<int64_t> expected = {1, 2, 3};
  for (const char* text : {"1,2,3", "1 2\n3\n", " 1, 2\t,3 ", "[1, 2, 3]", "\n[1,2,3]\n"}) {
    EXPECT_EQ(ParseInts("--n", text, 0, 9), expected) << text;
  }
}

TEST(ParseTest, IntegersAreRefusedByTheirPlace) {
  EXPECT_EQ(Refusal(""), "--n: expected one or more integers, got none");
  EXPECT_EQ(Refusal(" \n"), "--n: expected one or more integers, got none");
  EXPECT_EQ(Refusal("[]"), "--n: expected one or more integers, got none");
  EXPECT_EQ(Refusal("1,x"), "--n: item 1: expected an integer in 0..9, got \"x\"");
  EXPECT_EQ(Refusal("1,,2"), "--n: item 1: expected an integer in 0..9, got \"\"");
  EXPECT_EQ(Refusal("1,2,"), "--n: item 2: expected an integer in 0..9, got \"\"");
  EXPECT_EQ(Refusal("1 10"), "--n: item 1: expected an integer in 0..9, got \"10\"");
  EXPECT_NE(Refusal("[1, 10]").find("expected an integer in 0..9, got 10"), std::string::npos);
  EXPECT_NE(Refusal("[1, 2"), "no error");
}

TEST(ParseTest, TheVersionOfAUrlIsLeftOut) {
  for (const char* url : {"http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1//"}) {
    EXPECT_EQ(WithoutVersion(url), "http://h:1") << url;
  }
  EXPECT_EQ(WithoutVersion("http://h/a/v1"), "http://h/a");
  EXPECT_EQ(WithoutVersion("http://h/v1/a"), "http://h/v1/a");
}

TEST(ParseTest, AChoiceIsRefusedWithAllThatThereAre) {
  EXPECT_EQ(ParseChoice<int>("--c", "b", {{"a", 1}, {"b", 2}}), 2);
  EXPECT_EQ(ErrorMessage([] {
              ParseChoice<int>("--c", "B", {{"a", 1}, {"b", 2}});
            }),
            "--c: expected one of a, b, got \"B\"");
}

}  // namespace
}  // namespace quire::cli
