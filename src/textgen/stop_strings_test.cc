#include "textgen/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "testing/error_message.h"

namespace quire {
namespace {

// What comes out of `text`, cut into pieces that end at `cuts`.
struct Outcome {
  std::string text;
  std::optional<std::string> found;

  bool operator==(const Outcome&) const = default;
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(std::make_shared<const StopAutomaton>(stops));
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.Put(piece);
  outcome.text += matcher.Flush();
  outcome.found = matcher.found();
  return outcome;
}

// Straight from the definition.
Outcome Expected(const std::vector<std::string>& stops, const std::string& text) {
  std::vector<std::string> shortest_first = stops;
  std::ranges::stable_sort(shortest_first, {}, &std::string::size);
  for (size_t begin = 0; begin < text.size(); ++begin) {
    for (const std::string& stop : shortest_first) {
      if (text.compare(begin, stop.size(), stop) == 0) return {text.substr(0, begin), stop};
    }
  }
  return {text, {}};
}

TEST(StopStringsTest, EndBeforeTheFirst) {
  EXPECT_EQ(Feed({"###"}, {"one ## two ### three"}), (Outcome{"one ## two ", "###"}));
  EXPECT_EQ(Feed({"###"}, {"one #", "#", "# two"}), (Outcome{"one ", "###"}));
  EXPECT_EQ(Feed({"###"}, {"one ##"}), (Outcome{"one ##", {}}));
  EXPECT_EQ(Feed({}, {"one", " two"}), (Outcome{"one two", {}}));
  EXPECT_EQ(StopStrings(nullptr).Put("one"), "one");
}

TEST(StopStringsTest, TheOneThatBeginsFirstWinsThoughItEndsLater) {
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b", "c"}), (Outcome{"x", "abc"}));
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b", "d"}), (Outcome{"xa", "b"}));
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b"}), (Outcome{"xa", "b"}));
}

TEST(StopStringsTest, WhatCannotBeAStopStringIsNotKeptBack) {
  StopStrings matcher(std::make_shared<const StopAutomaton>(std::vector<std::string>{"END"}));
  EXPECT_EQ(matcher.Put("text E"), "text ");
  EXPECT_EQ(matcher.Put("xEN"), "Ex");
  EXPECT_EQ(matcher.Put("E"), "EN");
  EXPECT_EQ(matcher.Put("ND behind"), "");
  EXPECT_EQ(matcher.found(), "END");
  EXPECT_EQ(matcher.Put("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopStringsTest, AnEmptyOneIsRefused) {
  EXPECT_EQ(testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                  [] {
                                    StopAutomaton({"a", ""});
                                  }),
            "stop: expected a text, got an empty one");
}

TEST(StopStringsTest, TheCutsDoNotMatter) {
  std::mt19937 random(7);
  auto letters = [&](int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  int num_found = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(letters(1 + random() % 6));
    std::vector<std::string> pieces;
    std::string text;
    for (uint32_t i = 0; i < random() % 8; ++i) {
      pieces.push_back(letters(random() % 4));
      text += pieces.back();
    }
    const Outcome expected = Expected(stops, text);
    ASSERT_EQ(Feed(stops, pieces), expected) << "round " << round << ": " << text;
    num_found += expected.found.has_value();
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_LT(num_found, 4900);
}

// Texts that begin like many stop strings, and become none.
TEST(StopStringsTest, TheWorkGrowsWithTheTextAlone) {
  std::vector<std::string> stops;
  for (size_t i = 0; i < 16; ++i) {
    stops.push_back(std::string(1023 - i, 'a') + static_cast<char>('b' + i));
  }
  for (const char* piece : {"a", "ab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaz"}) {
    StopStrings matcher(std::make_shared<const StopAutomaton>(stops));
    const std::string_view text = piece;
    std::string out;
    for (int i = 0; i < 100'000; ++i) out += matcher.Put(text);
    out += matcher.Flush();
    EXPECT_EQ(std::ssize(out), 100'000 * std::ssize(text));
    EXPECT_EQ(matcher.found(), std::nullopt);
    EXPECT_LE(matcher.num_visited(), 2 * std::ssize(out));
  }
}

}  // namespace
}  // namespace quire
