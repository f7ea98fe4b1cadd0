#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "attn/sequence_step.h"
#include "decode/acceptance.h"
#include "decode/draft_tree.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

// Two branches, three levels, cut to six nodes.
const std::vector<float> kScores = {.6f, .3f, .5f, .05f, .2f, .08f, .4f, .02f, .1f, .01f};
const std::vector<int32_t> kTokens = {11, 12, 21, 22, 23, 24, 31, 32, 33, 34};
const std::vector<int32_t> kContinued = {-1, 0, 1, 2, 4};

DraftCandidates WorkedExample() {
  return {.branches = 2, .scores = kScores, .tokens = kTokens, .continued = kContinued};
}

DraftTree Select(const DraftCandidates& candidates, int32_t root_token, int32_t num_nodes) {
  DraftTree tree;
  SelectTree(candidates, root_token, num_nodes, tree);
  return tree;
}

TEST(DraftTreeTest, TheWorkedExampleHolds) {
  const DraftTree tree = Select(WorkedExample(), 7, 6);
  EXPECT_EQ(tree.candidates, (std::vector<int32_t>{-1, 0, 1, 2, 4, 6}));
  EXPECT_EQ(tree.tokens, (std::vector<int32_t>{7, 11, 12, 21, 23, 31}));
  EXPECT_EQ(tree.parents, (std::vector<int32_t>{kTreeRoot, 0, 0, 1, 2, 3}));
}

TEST(DraftTreeTest, ATreeThatWasReservedIsSelectedWithoutMemory) {
  DraftTree tree;
  tree.Reserve(kScores.size());
  const int64_t before = testing::AllocationCount();
  for (int32_t num_nodes = 1; num_nodes <= 11; ++num_nodes) {
    SelectTree(WorkedExample(), 7, num_nodes, tree);
  }
  EXPECT_EQ(testing::AllocationCount(), before);
  EXPECT_EQ(tree.tokens.size(), 11u);
}

TEST(DraftTreeTest, EqualScoresGoToTheLowerNumber) {
  const std::vector<float> scores = {.5f, .5f, .5f};
  const std::vector<int32_t> tokens = {1, 2, 3}, continued = {-1};
  const DraftTree tree =
      Select({.branches = 3, .scores = scores, .tokens = tokens, .continued = continued}, 0, 3);
  EXPECT_EQ(tree.tokens, (std::vector<int32_t>{0, 1, 2}));
}

TEST(DraftTreeTest, ArraysThatDoNotFitAreRefused) {
  DraftCandidates candidates = WorkedExample();
  EXPECT_EQ(ErrorMessage([&] { (void)Select(candidates, 7, 12); }),
            "num_nodes: expected 1..11 (the root and 10 candidates), got 12");
  candidates.tokens = candidates.tokens.first(9);
  EXPECT_EQ(ErrorMessage([&] { (void)Select(candidates, 7, 6); }),
            "tokens: expected 10 (one per score), got 9");
  candidates = WorkedExample();
  candidates.continued = candidates.continued.first(4);
  EXPECT_EQ(ErrorMessage([&] { (void)Select(candidates, 7, 6); }),
            "continued: expected 5 (10 candidates of 2 branches), got 4");
  candidates = WorkedExample();
  std::vector<float> scores = kScores;
  scores[6] = 0.9f;  // above its parent's 0.5
  candidates.scores = scores;
  EXPECT_EQ(ErrorMessage([&] { (void)Select(candidates, 7, 2); }),
            "candidate 6: its parent 2 scored less and was left out");
}

std::vector<int32_t> Accepted(const DraftedNodes& nodes, std::span<const int32_t> target,
                              size_t most) {
  std::vector<int32_t> path(most);
  path.resize(AcceptPath(nodes, target, path));
  return path;
}

TEST(AcceptanceTest, ThePathFollowsTheTargetAsTheWorkedExamplesDo) {
  const DraftTree tree = Select(WorkedExample(), 7, 6);
  const DraftedNodes nodes{.tokens = tree.tokens, .parents = tree.parents};
  struct Case {
    std::vector<int32_t> target, path;
  };
  for (const Case& c : {Case{{11, 21, 9, 31, 5, 8}, {0, 1, 3, 5}},
                        Case{{12, 0, 23, 0, 77, 0}, {0, 2, 4}}, Case{{99, 0, 0, 0, 0, 0}, {0}}}) {
    EXPECT_EQ(Accepted(nodes, c.target, 4), c.path);
  }
  const std::vector<int32_t> target = {11, 21, 9, 31, 5, 8};
  EXPECT_EQ(Accepted(nodes, target, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ErrorMessage([&] { Accepted(nodes, std::span(target).first(5), 4); }),
            "target: expected 6 (one per node), got 5");
  EXPECT_EQ(ErrorMessage([&] { Accepted(nodes, target, 0); }),
            "path: expected room for one node or more, got none");
}

TEST(AcceptanceTest, OfSiblingsWithOneTokenTheFirstIsTaken) {
  const std::vector<int32_t> tokens = {7, 3, 3, 4}, parents = {-1, 0, 0, 2};
  const std::vector<int32_t> target = {3, 4, 4, 9};
  EXPECT_EQ(Accepted({.tokens = tokens, .parents = parents}, target, 4),
            (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace quire
