#include "runner/step_results.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "attn/sequence_step.h"
#include "device/buffer.h"

namespace quire {
namespace {

// The results of steps of up to four sequences and 200 tokens, with a token for every item that says
// which item it is of.
class StepResultsTest : public ::testing::Test {
 protected:
  static constexpr int32_t kScoreItem = 1000;  // of block b, item i: (b + 1) * 1000 + i

  explicit StepResultsTest(int64_t tree_nodes = 0)
      : limits_{.context = TokenCount(300),
                .max_seqs = 4,
                .max_step_tokens = TokenCount(200),
                .max_samples = 6,
                .vocab_size = 400,
                .max_tree_nodes = TokenCount(tree_nodes)},
        memory_("results", ByteOffset(1 << 20)),
        carver_(memory_.bytes()) {
    results_ = StepResults(limits_, carver_);
    next_.emplace_back(TakeRows(NextCapacity(limits_)));
    next_results_ = LayOutSampleResults(NextCapacity(limits_), carver_);
    Number(next_results_, 0);
    for (int32_t b = 0; b < MaxScoreBlocks(limits_); ++b) {
      scores_.push_back(TakeRows(ScoreCapacity(limits_)));
      score_results_.push_back(LayOutSampleResults(ScoreCapacity(limits_), carver_));
      Number(score_results_.back(), (b + 1) * kScoreItem);
    }
  }

  void Pick(std::span<const StepSequence> seqs) {
    results_.Pick({.sequences = seqs}, next_[0], scores_);
  }
  const StepResult& Fill() { return results_.Fill(next_results_, score_results_); }

  // `num_tokens` tokens from 100 on, wanting something.
  StepSequence Sequence(int64_t num_tokens, Want want) {
    StepSequence seq;
    seq.tokens = std::span<const int32_t>(tokens_).first(static_cast<size_t>(num_tokens));
    seq.want = want;
    return seq;
  }

  const RunnerLimits limits_;
  StepResults results_;
  std::vector<SampledRows> next_, scores_;
  SampleResults next_results_;
  std::vector<SampleResults> score_results_;

 private:
  SampledRows TakeRows(const SampleCapacity& capacity) {
    const std::span<int32_t> rows = carver_.Take<int32_t>(capacity.rows);
    return {.rows = rows, .packer = SamplePacker(capacity, LayOutSampleInputs(capacity, carver_))};
  }
  static void Number(const SampleResults& results, int32_t first) {
    for (size_t i = 0; i < results.chosen.size(); ++i) {
      results.chosen[i] = {.token = first + static_cast<int32_t>(i), .logprob = -1};
    }
  }
  static std::vector<int32_t> Tokens() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 200; ++i) tokens.push_back(100 + i);
    return tokens;
  }

  Buffer memory_;
  Carver carver_;
  const std::vector<int32_t> tokens_ = Tokens();
};

TEST_F(StepResultsTest, RowsAreThoseOfTheHiddenStateAndItemsSayWhatIsWanted) {
  StepSequence sampled = Sequence(3, Want::kNextToken);
  sampled.position = TokenCount(10);
  sampled.num_samples = 2;
  sampled.first_sample = 5;
  StepSequence scored = Sequence(70, Want::kScores);
  scored.next_token = 7;
  scored.sampling.top_logprobs = 4;
  const StepSequence seqs[] = {Sequence(5, Want::kNothing), sampled, scored,
                               Sequence(1, Want::kNextToken)};
  Pick(seqs);
  EXPECT_EQ(results_.num_rows(), 73);
  EXPECT_EQ(results_.num_score_blocks(), 2u);
  EXPECT_EQ((std::vector<int32_t>(next_[0].rows.begin(), next_[0].rows.end())),
            (std::vector<int32_t>{4, 7, 78, 0}));
  const std::span<const SampleItem> items = next_[0].packer.inputs().items;
  ASSERT_EQ(next_[0].packer.num_items(), 4);
  EXPECT_EQ(next_[0].packer.num_rows(), 3);
  EXPECT_EQ(items[0].row, 0);  // of which nothing is wanted but that it has no NaN
  EXPECT_EQ(items[0].kind, SampleKind::kGiven);
  EXPECT_EQ(items[0].given, kNoToken);
  EXPECT_EQ(items[2].row, 1);
  EXPECT_EQ(items[2].sample, 6);
  EXPECT_EQ(items[2].position, 13);
  EXPECT_EQ(items[3].row, 2);
  EXPECT_EQ(scores_[0].packer.num_rows(), 64);
  EXPECT_EQ(scores_[1].packer.num_rows(), 6);
  EXPECT_EQ(scores_[0].rows[0], 8);
  EXPECT_EQ(scores_[1].rows[5], 77);
  EXPECT_EQ(scores_[1].rows[6], 0);
  EXPECT_EQ(scores_[0].packer.inputs().items[63].given, 164);
  EXPECT_EQ(scores_[1].packer.inputs().items[0].row, 0);
  EXPECT_EQ(scores_[1].packer.inputs().items[5].given, 7);
  EXPECT_EQ(scores_[1].packer.inputs().items[5].num_top, 4);
}

TEST_F(StepResultsTest, ResultsComeBackInTheOrderOfTheBatch) {
  StepSequence scored = Sequence(70, Want::kScores);
  scored.sampling.top_logprobs = 3;
  StepSequence sampled = Sequence(2, Want::kNextToken);
  sampled.num_samples = 3;
  const StepSequence seqs[] = {sampled, scored, Sequence(4, Want::kNothing),
                               Sequence(1, Want::kNextToken)};
  Pick(seqs);
  const StepResult& result = Fill();
  ASSERT_EQ(result.sequences.size(), 4u);
  ASSERT_EQ(result.sequences[0].answers.size(), 3u);
  EXPECT_EQ(result.sequences[0].answers[2].tokens[0].chosen.token, 2);
  ASSERT_EQ(result.sequences[1].answers.size(), 1u);
  const std::span<const StepToken> scores = result.sequences[1].answers[0].tokens;
  ASSERT_EQ(scores.size(), 70u);
  EXPECT_EQ(scores[63].chosen.token, kScoreItem + 63);
  EXPECT_EQ(scores[64].chosen.token, 2 * kScoreItem);
  EXPECT_EQ(scores[65].top.data(), &score_results_[1].top[kMaxTopLogprobs]);
  EXPECT_EQ(scores[65].top.size(), 3u);
  EXPECT_EQ(result.sequences[2].answers.size(), 0u);
  ASSERT_EQ(result.sequences[3].answers.size(), 1u);
  EXPECT_EQ(result.sequences[3].answers[0].tokens[0].chosen.token, 4);
}

// As many samples as there may be, and sequences that want nothing besides.
TEST_F(StepResultsTest, ASequenceThatWantsNothingTakesNoSampleAndSaysOnlyWhetherItHasNaN) {
  StepSequence sampled = Sequence(2, Want::kNextToken);
  sampled.num_samples = 6;
  StepSequence chunk = Sequence(4, Want::kNothing);
  chunk.num_samples = 9;  // what nobody asks for does not count
  chunk.sampling.top_logprobs = 3;
  const StepSequence seqs[] = {chunk, sampled, chunk, chunk};
  Pick(seqs);
  EXPECT_EQ(next_[0].packer.num_items(), 9);
  EXPECT_EQ(next_[0].packer.inputs().items[0].num_top, 0);
  next_results_.chosen[7].logprob = std::numeric_limits<float>::quiet_NaN();
  const StepResult& result = Fill();
  for (const size_t i : {0u, 2u, 3u}) EXPECT_TRUE(result.sequences[i].answers.empty()) << i;
  EXPECT_EQ(result.sequences[0].fault, RowFault::kNone);
  EXPECT_EQ(result.sequences[1].fault, RowFault::kNone);
  EXPECT_EQ(result.sequences[1].answers.size(), 6u);
  EXPECT_EQ(result.sequences[1].answers[5].tokens[0].chosen.token, 6);
  EXPECT_EQ(result.sequences[2].fault, RowFault::kLogitsNotFinite);
  EXPECT_EQ(result.sequences[3].fault, RowFault::kNone);
}

TEST_F(StepResultsTest, SamplesOfATreeHaveATokenForEveryNode) {
  const std::vector<int32_t> parents = {kTreeRoot, 0, 0};
  StepSequence tree = Sequence(3, Want::kNextToken);
  tree.position = TokenCount(10);
  tree.tree_parents = parents;
  tree.num_samples = 2;
  const std::vector<LogitBias> biases(kMaxStepBiases, {.token = 3, .bias = 1});
  tree.sampling.logit_bias = biases;
  const StepSequence seqs[] = {tree};
  Pick(seqs);
  EXPECT_EQ(next_[0].packer.num_rows(), 3);
  const std::span<const SampleItem> items = next_[0].packer.inputs().items;
  EXPECT_EQ(items[0].position, 11);
  EXPECT_EQ(items[2].position, 12);
  EXPECT_EQ(items[4].position, 12);  // a sibling
  for (size_t i = 0; i < 6; ++i) {   // once for all nodes
    EXPECT_EQ(items[i].first_bias, 0);
    EXPECT_EQ(items[i].num_biases, kMaxStepBiases);
  }
  const StepResult& result = Fill();
  ASSERT_EQ(result.sequences[0].answers.size(), 2u);
  for (size_t sample = 0; sample < 2; ++sample) {
    const std::span<const StepToken> tokens = result.sequences[0].answers[sample].tokens;
    ASSERT_EQ(tokens.size(), 3u);
    for (size_t node = 0; node < 3; ++node) {
      EXPECT_EQ(tokens[node].chosen.token, static_cast<int32_t>(2 * node + sample));
    }
  }
}

TEST_F(StepResultsTest, AStepKnowsNothingOfTheOneBefore) {
  const StepSequence many[] = {Sequence(70, Want::kScores), Sequence(2, Want::kNextToken)};
  Pick(many);
  Fill();
  const StepSequence few[] = {Sequence(2, Want::kScores)};
  Pick(few);
  EXPECT_EQ(results_.num_rows(), 2);
  EXPECT_EQ(results_.num_score_blocks(), 1u);
  EXPECT_EQ(next_[0].packer.num_items(), 0);
  EXPECT_EQ(next_[0].rows[0], 0);
  EXPECT_EQ(scores_[0].packer.num_items(), 2);
  EXPECT_EQ(scores_[0].rows[2], 0);
  EXPECT_EQ(Fill().sequences.size(), 1u);
  Pick({});
  EXPECT_EQ(results_.num_rows(), 0);
  EXPECT_TRUE(Fill().sequences.empty());
}

TEST_F(StepResultsTest, LogitsThatAreNotFiniteAreTheFaultOfTheirSequenceAlone) {
  const StepSequence seqs[] = {Sequence(2, Want::kScores), Sequence(2, Want::kNextToken),
                               Sequence(1, Want::kNextToken)};
  Pick(seqs);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  score_results_[0].chosen[1].logprob = kNaN;
  next_results_.chosen[0] = {.token = kNoToken, .logprob = kNaN};
  const StepResult& result = Fill();
  for (const size_t faulty : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(result.sequences[faulty].fault, RowFault::kLogitsNotFinite);
    EXPECT_TRUE(result.sequences[faulty].answers.empty());
  }
  EXPECT_EQ(result.sequences[2].fault, RowFault::kNone);
  EXPECT_EQ(result.sequences[2].answers[0].tokens[0].chosen.token, 1);
}

TEST_F(StepResultsTest, ANodeOfATreeWhoseLogitsAreNotFiniteSaysSoAlone) {
  const std::vector<int32_t> parents = {kTreeRoot, 0, 0};
  StepSequence tree = Sequence(3, Want::kNextToken);
  tree.tree_parents = parents;
  const StepSequence seqs[] = {tree};
  Pick(seqs);
  next_results_.chosen[1] = {.token = kNoToken, .logprob = std::numeric_limits<float>::quiet_NaN()};
  const StepResult& result = Fill();
  EXPECT_EQ(result.sequences[0].fault, RowFault::kNone);
  ASSERT_EQ(result.sequences[0].answers.size(), 1u);
  EXPECT_EQ(result.sequences[0].answers[0].tokens[0].chosen.token, 0);
  EXPECT_EQ(result.sequences[0].answers[0].tokens[1].chosen.token, kNoToken);
}

class TreeResultsTest : public StepResultsTest {
 protected:
  TreeResultsTest() : StepResultsTest(3) {}
};

TEST_F(TreeResultsTest, PenaltiesOfANodeReadTheTextOnceAndThePathOfItsOwn) {
  const std::vector<int32_t> parents = {kTreeRoot, 0, 0};
  const std::vector<int32_t> prompt = {7, 8, 9}, output = {10};
  StepSequence tree = Sequence(3, Want::kNextToken);  // 100, 101, 102
  tree.tree_parents = parents;
  tree.prompt = prompt;
  tree.output = output;
  tree.sampling.frequency_penalty = 1;
  const StepSequence seqs[] = {tree};
  Pick(seqs);
  const SampleInputs& inputs = next_[0].packer.inputs();
  const std::vector<std::vector<int32_t>> paths = {{100}, {101, 100}, {102, 100}};
  for (size_t i = 0; i < 3; ++i) {
    const SampleItem& item = inputs.items[i];
    EXPECT_EQ(item.first_text, 0);
    EXPECT_EQ(item.num_prompt, 3);
    EXPECT_EQ(item.num_output, 1);
    const auto path = inputs.text.subspan(static_cast<size_t>(item.first_path),
                                          static_cast<size_t>(item.num_path));
    EXPECT_EQ(std::vector<int32_t>(path.begin(), path.end()), paths[i]);
  }
}

}  // namespace
}  // namespace quire
