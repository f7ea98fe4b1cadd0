#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "attn/sequence_step.h"
#include "decode/acceptance.h"
#include "decode/draft_tree.h"
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

TEST(DraftTreeTest, TheWorkedExampleHolds) {
  const DraftTree tree = SelectTree(WorkedExample(), 7, 6);
  EXPECT_EQ(tree.candidates, (std::vector<int32_t>{-1, 0, 1, 2, 4, 6}));
  EXPECT_EQ(tree.tokens, (std::vector<int32_t>{7, 11, 12, 21, 23, 31}));
  EXPECT_EQ(tree.parents, (std::vector<int32_t>{kTreeRoot, 0, 0, 1, 2, 3}));
  EXPECT_EQ(tree.first_child, (std::vector<int32_t>{1, 3, 4, 5, -1, -1}));
  EXPECT_EQ(tree.next_sibling, (std::vector<int32_t>{-1, 2, -1, -1, -1, -1}));
}

TEST(DraftTreeTest, EqualScoresGoToTheLowerNumber) {
  const std::vector<float> scores = {.5f, .5f, .5f};
  const std::vector<int32_t> tokens = {1, 2, 3}, continued = {-1};
  const DraftTree tree =
      SelectTree({.branches = 3, .scores = scores, .tokens = tokens, .continued = continued}, 0, 3);
  EXPECT_EQ(tree.tokens, (std::vector<int32_t>{0, 1, 2}));
}

TEST(DraftTreeTest, ArraysThatDoNotFitAreRefused) {
  DraftCandidates candidates = WorkedExample();
  EXPECT_EQ(ErrorMessage([&] { (void)SelectTree(candidates, 7, 12); }),
            "num_nodes: expected 1..11 (the root and 10 candidates), got 12");
  candidates.tokens = candidates.tokens.first(9);
  EXPECT_EQ(ErrorMessage([&] { (void)SelectTree(candidates, 7, 6); }),
            "tokens: expected 10 (one per score), got 9");
  candidates = WorkedExample();
  candidates.continued = candidates.continued.first(4);
  EXPECT_EQ(ErrorMessage([&] { (void)SelectTree(candidates, 7, 6); }),
            "continued: expected 5 (10 candidates of 2 branches), got 4");
  candidates = WorkedExample();
  std::vector<float> scores = kScores;
  scores[6] = 0.9f;  // above its parent's 0.5
  candidates.scores = scores;
  EXPECT_EQ(ErrorMessage([&] { (void)SelectTree(candidates, 7, 2); }),
            "candidate 6: its parent 2 scored less and was left out");
}

TEST(AcceptanceTest, GreedyFollowsTheTargetAsTheWorkedExamplesDo) {
  const DraftTree tree = SelectTree(WorkedExample(), 7, 6);
  struct Case {
    std::vector<int32_t> target, nodes;
    int32_t next_token;
  };
  for (const Case& c :
       {Case{{11, 21, 9, 31, 5, 8}, {0, 1, 3, 5}, 8}, Case{{12, 0, 23, 0, 77, 0}, {0, 2, 4}, 77},
        Case{{99, 0, 0, 0, 0, 0}, {0}, 99}}) {
    const Acceptance accepted = AcceptGreedy(tree, c.target, 4);
    EXPECT_EQ(accepted.nodes, c.nodes);
    EXPECT_EQ(accepted.next_token, c.next_token);
  }
  const std::vector<int32_t> target = {11, 21, 9, 31, 5, 8};
  EXPECT_EQ(AcceptGreedy(tree, target, 2).nodes, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ErrorMessage([&] { (void)AcceptGreedy(tree, std::span(target).first(5), 4); }),
            "target: expected 6 (one per node), got 5");
}

TEST(AcceptanceTest, SampledTokensAreDistributedAsTheTargetWouldDrawThem) {
  // One draft of token 1 under the root; the target gives .5 .3 .2 there.
  const std::vector<float> one_score = {1.0f};
  const std::vector<int32_t> one_token = {1}, continued = {-1};
  const DraftTree tree = SelectTree(
      {.branches = 1, .scores = one_score, .tokens = one_token, .continued = continued}, 9, 2);
  const std::vector<float> probabilities = {.5f, .3f, .2f, 1.0f, 0.0f, 0.0f};
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  std::vector<int> counts(3);
  const int rounds = 60000;
  for (int i = 0; i < rounds; ++i) {
    const std::vector<float> coins = {uniform(random), uniform(random)};
    const Acceptance accepted = AcceptSampled(
        tree, {.probabilities = probabilities, .coins = coins, .last_coin = uniform(random)}, 2);
    const bool drafted = accepted.nodes.size() == 2;
    if (drafted) {
      EXPECT_EQ(accepted.next_token, 0);
    }
    ++counts[static_cast<size_t>(drafted ? 1 : accepted.next_token)];
  }
  // Four standard deviations of a share of 60,000 draws are below 0.0083.
  EXPECT_NEAR(counts[0] / double{rounds}, .5, .0083);
  EXPECT_NEAR(counts[1] / double{rounds}, .3, .0083);
  EXPECT_NEAR(counts[2] / double{rounds}, .2, .0083);
}

}  // namespace
}  // namespace quire
