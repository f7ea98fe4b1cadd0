#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {
namespace {

using Strings = std::vector<std::string>;

Strings Split(std::vector<PreTokenizer::Step> steps, std::string_view text,
              TextPlace place = TextPlace::kStart) {
  Strings strings;
  PreTokenizer(std::move(steps)).ForEachWord(text, place, [&](std::string_view word) {
    strings.emplace_back(word);
  });
  return strings;
}

template <class... Steps>
std::vector<PreTokenizer::Step> Sequence(Steps... steps) {
  std::vector<PreTokenizer::Step> sequence;
  (sequence.emplace_back(std::move(steps)), ...);
  return sequence;
}

SplitStep At(std::string_view pattern, SplitStep::Behavior behavior,
             SplitStep::Cut cut = SplitStep::Cut::kAtMatches) {
  return {.pattern = Regex(pattern, "here"), .behavior = behavior, .cut = cut};
}

TEST(PreTokenizerTest, WithoutStepsAllIsOneWord) {
  EXPECT_EQ(Split({}, "a b"), (Strings{"a b"}));
  EXPECT_EQ(Split({}, ""), Strings{});
}

TEST(PreTokenizerTest, DelimitersGoWhereTheBehaviorSays) {
  using Behavior = SplitStep::Behavior;
  const std::string_view text = "the-final--countdown";
  EXPECT_EQ(Split(Sequence(At("-", Behavior::kIsolated)), text),
            (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(Split(Sequence(At("-", Behavior::kRemoved)), text),
            (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(Split(Sequence(At("-", Behavior::kMergedWithPrevious)), text),
            (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(Split(Sequence(At("-", Behavior::kMergedWithNext)), text),
            (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(Split(Sequence(At("-", Behavior::kContiguous)), text),
            (Strings{"the", "-", "final", "--", "countdown"}));
}

TEST(PreTokenizerTest, WhatMatchesCanBeTheWordInstead) {
  EXPECT_EQ(
      Split(Sequence(At("[a-z]+", SplitStep::Behavior::kRemoved, SplitStep::Cut::kBetweenMatches)),
            "ab, cd"),
      (Strings{"ab", "cd"}));
}

TEST(PreTokenizerTest, AStepCutsTheWordsOfTheOneBefore) {
  // (?!\S) sees the end of its word, not what is behind.
  EXPECT_EQ(Split(Sequence(At("[0-9]", SplitStep::Behavior::kIsolated),
                           At(R"(\s+(?!\S)|\s+)", SplitStep::Behavior::kIsolated)),
                  "a  1  b"),
            (Strings{"a", "  ", "1", " ", " ", "b"}));
}

TEST(PreTokenizerTest, EveryWordGetsAPrefixSpaceOnce) {
  EXPECT_EQ(Split(Sequence(At("-", SplitStep::Behavior::kIsolated), PrefixSpaceStep{}), "a- b"),
            (Strings{" a", " -", " b"}));
}

MetaspaceStep Metaspace(MetaspaceStep::Prepend prepend, bool split) {
  return {.replacement = "▁",
          .prepend = prepend,
          .split = split,
          .pattern = Regex::Literal("▁", "here")};
}

TEST(PreTokenizerTest, MetaspaceMarksSpacesAndTheBeginning) {
  using Prepend = MetaspaceStep::Prepend;
  EXPECT_EQ(Split(Sequence(Metaspace(Prepend::kAlways, true)), "a  b"), (Strings{"▁a", "▁", "▁b"}));
  EXPECT_EQ(Split(Sequence(Metaspace(Prepend::kAlways, true)), " a"), (Strings{"▁a"}));
  EXPECT_EQ(Split(Sequence(Metaspace(Prepend::kNever, false)), "a b"), (Strings{"a▁b"}));
  EXPECT_EQ(Split(Sequence(Metaspace(Prepend::kFirst, false)), "a b"), (Strings{"▁a▁b"}));
  EXPECT_EQ(Split(Sequence(Metaspace(Prepend::kFirst, false)), "a b", TextPlace::kLater),
            (Strings{"a▁b"}));
}

}  // namespace
}  // namespace quire
