#include "decode/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "attn/sequence_step.h"
#include "testing/allocation_count.h"

namespace quire {
namespace {

// What a drafter says of a text whose first tokens are the prompt; the root is left out.
std::vector<int32_t> DraftOf(Drafter& drafter, std::span<const int32_t> text, size_t num_prompt,
                             size_t most, uint64_t id = 1) {
  std::vector<int32_t> tokens(most + 1), parents(most + 1, kTreeRoot);
  tokens[0] = text.back();
  const StepSequence seq{.id = id,
                         .tokens = text.last(1),
                         .prompt = text.first(num_prompt),
                         .output = text.subspan(num_prompt)};
  Draft draft{.tokens = tokens, .parents = parents};
  drafter.AddNodes({.sequences = {&seq, 1}}, {&draft, 1});
  for (size_t i = 1; i < draft.num_nodes; ++i) {
    EXPECT_EQ(parents[i], static_cast<int32_t>(i) - 1);
  }
  return {tokens.begin() + 1, tokens.begin() + static_cast<long>(draft.num_nodes)};
}

// The same by looking through all of the text.
std::vector<int32_t> Expected(std::span<const int32_t> text, size_t most) {
  for (size_t length = std::min<size_t>(8, text.size()); length >= 2; --length) {
    for (size_t end = text.size() - 1; end >= length; --end) {
      if (!std::ranges::equal(text.subspan(end - length, length), text.last(length))) continue;
      std::vector<int32_t> all(text.begin(), text.end());
      for (size_t i = 0; i < most; ++i) all.push_back(all[end + i]);
      return {all.end() - static_cast<long>(most), all.end()};
    }
  }
  return {};
}

TEST(NgramDrafterTest, TheContinuationOfTheLongestMatchIsDrafted) {
  NgramDrafter drafter(1, TokenCount(100));
  // "2 3" stands twice; "1 2 3" once, and before the other.
  const std::vector<int32_t> text = {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3};
  EXPECT_EQ(DraftOf(drafter, text, 6, 3), (std::vector<int32_t>{4, 5, 9}));
}

TEST(NgramDrafterTest, OfMatchesThatAreAsLongTheLastIsTaken) {
  NgramDrafter drafter(1, TokenCount(100));
  const std::vector<int32_t> text = {2, 3, 4, 5, 2, 3, 6, 7, 9, 2, 3};
  EXPECT_EQ(DraftOf(drafter, text, 2, 2), (std::vector<int32_t>{6, 7}));
}

TEST(NgramDrafterTest, OneTokenIsNoMatch) {
  NgramDrafter drafter(1, TokenCount(100));
  EXPECT_TRUE(DraftOf(drafter, std::vector<int32_t>{3, 4, 5, 3}, 1, 4).empty());
  EXPECT_TRUE(DraftOf(drafter, std::vector<int32_t>{3}, 0, 4, 2).empty());
}

TEST(NgramDrafterTest, APeriodGoesOn) {
  NgramDrafter drafter(1, TokenCount(100));
  EXPECT_EQ(DraftOf(drafter, std::vector<int32_t>{7, 1, 2, 1, 2}, 1, 5),
            (std::vector<int32_t>{1, 2, 1, 2, 1}));
}

TEST(NgramDrafterTest, ASequenceThatIsNotKnownHasNoDrafts) {
  NgramDrafter drafter(1, TokenCount(100));
  EXPECT_TRUE(DraftOf(drafter, std::vector<int32_t>{1, 2, 1, 2}, 1, 5, 0).empty());
}

TEST(NgramDrafterTest, ATextThatIsNotTheLastOneGrownIsReadAllTheSame) {
  NgramDrafter drafter(1, TokenCount(100));
  const std::vector<int32_t> first = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2};
  EXPECT_EQ(DraftOf(drafter, first, 1, 2), (std::vector<int32_t>{3, 4}));
  const std::vector<int32_t> shorter = {5, 6, 7, 5, 6};
  EXPECT_EQ(DraftOf(drafter, shorter, 1, 2), (std::vector<int32_t>{7, 5}));
  std::vector<int32_t> longer = {9, 9, 8};
  longer.resize(90, 3);
  EXPECT_EQ(DraftOf(drafter, longer, 1, 2), (std::vector<int32_t>{3, 3}));
}

// Texts of few words, which match often, growing by a few tokens at a time; more of them than places.
TEST(NgramDrafterTest, TextsThatGrowDraftWhatASearchOfAllTheTextFinds) {
  constexpr size_t kSeqs = 5;
  NgramDrafter drafter(3, TokenCount(400));
  std::mt19937 random(1);
  std::array<std::vector<int32_t>, kSeqs> texts;
  for (auto& text : texts) text = {0, 1, 2};
  for (int round = 0; round < 600; ++round) {
    const size_t at = random() % kSeqs;
    std::vector<int32_t>& text = texts[at];
    for (uint32_t more = 1 + random() % 4; more > 0 && text.size() < 400; --more) {
      text.push_back(static_cast<int32_t>(random() % (at < 2 ? 3 : 12)));
    }
    const size_t most = random() % 6;
    ASSERT_EQ(DraftOf(drafter, text, 3, most, at + 1), Expected(text, most))
        << "round " << round << ", sequence " << at << ", " << text.size() << " tokens";
  }
}

TEST(NgramDrafterTest, NothingIsTakenFromTheHeapOnceItIsMade) {
  NgramDrafter drafter(2, TokenCount(5000));
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 5000; ++i) text.push_back(i % 700);
  std::array<int32_t, 5> tokens = {}, parents = {};
  const int64_t before = testing::AllocationCount();
  for (size_t size = 3; size <= text.size(); size += 100) {
    for (uint64_t id = 1; id <= 3; ++id) {
      const auto given = std::span<const int32_t>(text).first(size);
      const StepSequence seq{
          .id = id, .tokens = given.last(1), .prompt = given.first(1), .output = given.subspan(1)};
      Draft draft{.tokens = tokens, .parents = parents};
      drafter.AddNodes({.sequences = {&seq, 1}}, {&draft, 1});
    }
  }
  EXPECT_EQ(testing::AllocationCount(), before);
}

}  // namespace
}  // namespace quire
