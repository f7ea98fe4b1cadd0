#include "textgen/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  StopStrings matcher(stops);
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
}

TEST(StopStringsTest, TheOneThatBeginsFirstWinsThoughItEndsLater) {
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b", "c"}), (Outcome{"x", "abc"}));
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b", "d"}), (Outcome{"xa", "b"}));
  EXPECT_EQ(Feed({"b", "abc"}, {"xa", "b"}), (Outcome{"xa", "b"}));
}

TEST(StopStringsTest, WhatCannotBeAStopStringIsNotKeptBack) {
  StopStrings matcher({"END"});
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
                                    StopStrings({"a", ""});
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

}  // namespace
}  // namespace quire
