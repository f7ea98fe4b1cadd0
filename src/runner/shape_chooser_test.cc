#include "runner/shape_chooser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace quire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// How often a guess of each depth is right if those before it are.
struct Acceptance {
  std::vector<double> chain, tree;

  double At(const TreeShape& shape, int64_t depth) const {
    const std::vector<double>& rates = shape.branches == 1 ? chain : tree;
    return rates[std::min(static_cast<size_t>(depth), rates.size() - 1)];
  }
};
const Acceptance kBundled{{0.98, 0.58, 0.53}, {0.99, 0.75, 0.65}};
const Acceptance kGood{{0.9, 0.85, 0.8}, {0.95, 0.92, 0.9}};
const Acceptance kPoor{{0.25, 0.2}, {0.35, 0.3}};

// What a row of a step and a pass of the layer cost, beside what a step does.
struct Machine {
  const char* name;
  double step, row, pass, pass_row;

  double Seconds(const TreeShape* shape, int64_t num_seqs) const {
    const auto seqs = static_cast<double>(num_seqs);
    if (shape == nullptr) return step + seqs * row;
    const auto levels = static_cast<double>(shape->steps - 1);
    return step + seqs * row * static_cast<double>(shape->nodes) + (1 + levels) * pass +
           seqs * pass_row * (1 + levels * static_cast<double>(shape->branches));
  }
};
// One that is bound by arithmetic, one by a pass's own time, and one by reading weights.
constexpr Machine kArithmetic{"arithmetic", 1, 1, 0.3, 0.3};
constexpr Machine kPasses{"passes", 10, 0.5, 3, 0.1};
constexpr Machine kMemory{"memory", 20, 0.1, 0.4, 0.02};

ShapeCosts CostsOf(const Machine& machine, const std::vector<TreeShape>& shapes) {
  ShapeCosts costs;
  for (const int64_t num_seqs : {1, 4, 16, 64}) {
    ShapeCost cost{.num_seqs = num_seqs, .seconds = {machine.Seconds(nullptr, num_seqs)}};
    for (const TreeShape& shape : shapes) cost.seconds.push_back(machine.Seconds(&shape, num_seqs));
    costs.steps.push_back(cost);
  }
  return costs;
}

// Tokens a second that steps of one shape give in the mean.
double SpeedOf(const Machine& machine, const std::vector<TreeShape>& shapes,
               const Acceptance& acceptance, int64_t num_seqs, size_t number) {
  const TreeShape* const shape = number == 0 ? nullptr : &shapes[number - 1];
  double tokens = 1, reached = 1;
  for (int64_t depth = 0; shape != nullptr && depth < shape->steps; ++depth) {
    reached *= acceptance.At(*shape, depth);
    tokens += reached;
  }
  return static_cast<double>(num_seqs) * tokens / machine.Seconds(shape, num_seqs);
}

// Tokens a second of steps whose shape the chooser says, with a clock that says what they cost.
double ServeBy(ShapeChooser& chooser, const Machine& machine, const std::vector<TreeShape>& shapes,
               const Acceptance& acceptance, int64_t num_seqs, int64_t num_steps) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  double seconds = 0, tokens = 0;
  for (int64_t step = 0; step < num_steps; ++step) {
    const size_t number = chooser.Choose(num_seqs);
    const TreeShape* const shape = number == 0 ? nullptr : &shapes[number - 1];
    seconds += machine.Seconds(shape, num_seqs);
    for (int64_t i = 0; i < num_seqs; ++i) {
      if (shape == nullptr) {
        tokens += 1;
        chooser.NotePlain(1);
        continue;
      }
      int64_t accepted = 0;
      while (accepted < shape->steps && uniform(random) < acceptance.At(*shape, accepted)) {
        ++accepted;
      }
      tokens += static_cast<double>(1 + accepted);
      chooser.NoteDraft(number, shape->steps, accepted);
    }
  }
  return tokens / seconds;
}

TEST(ShapeChooserTest, IsNeverMuchSlowerThanPlainStepsAndNearTheBestShape) {
  const std::vector<TreeShape> shapes = CandidateShapes(8, 32);
  size_t num_with = 0, num_without = 0;
  for (const Machine& machine : {kArithmetic, kPasses, kMemory}) {
    for (const Acceptance& acceptance : {kBundled, kGood, kPoor}) {
      for (const int64_t num_seqs : {1, 3, 16, 64, 100}) {
        SCOPED_TRACE(::testing::Message() << machine.name << ", " << acceptance.chain[0] << ", "
                                          << num_seqs << " sequences");
        double best = 0;
        for (size_t number = 0; number <= shapes.size(); ++number) {
          best = std::max(best, SpeedOf(machine, shapes, acceptance, num_seqs, number));
        }
        const double plain = SpeedOf(machine, shapes, acceptance, num_seqs, 0);
        ShapeChooser chooser(shapes, CostsOf(machine, shapes));
        const double speed = ServeBy(chooser, machine, shapes, acceptance, num_seqs, 4000);
        EXPECT_GE(speed, 0.97 * plain);
        EXPECT_GE(speed, 0.95 * best);
        (best > 1.05 * plain ? num_with : num_without) += 1;
      }
    }
  }
  EXPECT_GT(num_with, 10u);
  EXPECT_GT(num_without, 10u);
}

TEST(ShapeChooserTest, WhatDoesNotPayAnyMoreIsGivenUpAndTriedAgain) {
  const std::vector<TreeShape> shapes = CandidateShapes(4, 16);
  ShapeChooser chooser(shapes, CostsOf(kPasses, shapes));
  ServeBy(chooser, kPasses, shapes, kGood, 4, 500);
  EXPECT_NE(chooser.Choose(4), 0u);
  ServeBy(chooser, kPasses, shapes, kPoor, 4, 500);
  EXPECT_EQ(chooser.Choose(4), 0u);
  // Nobody drafts, so nobody sees that guesses are good again, until that is tried.
  const double speed = ServeBy(chooser, kPasses, shapes, kGood, 4, 20000);
  EXPECT_NE(chooser.Choose(4), 0u);
  EXPECT_GT(speed, 1.1 * SpeedOf(kPasses, shapes, kGood, 4, 0));
}

TEST(ShapeChooserTest, ChainsShareWhatIsKnownAndTreesHaveTheirOwn) {
  const std::vector<TreeShape> shapes = CandidateShapes(4, 8);
  ASSERT_EQ(shapes.size(), 5u);
  ShapeChooser chooser(shapes, CostsOf(kMemory, shapes));
  EXPECT_DOUBLE_EQ(chooser.MeanTokens(0), 1);
  EXPECT_DOUBLE_EQ(chooser.MeanTokens(1), 1.9);
  EXPECT_NEAR(chooser.MeanTokens(5), 1 + 0.99 + 0.99 * 0.99 + 0.99 * 0.99 * 0.99, 1e-12);
  for (int i = 0; i < 200; ++i) chooser.NoteDraft(3, 3, i % 2 == 0 ? 3 : 0);
  const double half = (100 + 4 * 0.9) / 204;
  EXPECT_NEAR(chooser.MeanTokens(1), 1 + half, 1e-12);
  EXPECT_GT(chooser.MeanTokens(4), 1 + 4 * half * 0.9) << "deeper guesses were right";
  EXPECT_GT(chooser.MeanTokens(5), chooser.MeanTokens(3)) << "two guesses, as far as is known";
  for (int i = 0; i < 200; ++i) chooser.NoteDraft(5, 3, 0);
  EXPECT_LT(chooser.MeanTokens(5), 1.1);
  EXPECT_NEAR(chooser.MeanTokens(1), 1 + half, 1e-12);
}

TEST(ShapeChooserTest, CostsBetweenThoseMeasuredAreInProportion) {
  const std::vector<TreeShape> shapes = CandidateShapes(1, 3);
  const ShapeChooser chooser(shapes, {.steps = {{.num_seqs = 1, .seconds = {2, 3, 4}},
                                                {.num_seqs = 5, .seconds = {6, 11, kNever}}}});
  EXPECT_DOUBLE_EQ(chooser.Cost(1, 1), 3);
  EXPECT_DOUBLE_EQ(chooser.Cost(2, 1), 5);
  EXPECT_DOUBLE_EQ(chooser.Cost(10, 0), 12);
  EXPECT_DOUBLE_EQ(chooser.Cost(1, 2), 4);
  EXPECT_EQ(chooser.Cost(3, 2), kNever) << "of what was not measured nothing is known";
  EXPECT_EQ(chooser.Cost(9, 2), kNever);
}

// Drafts save a quarter of the time of a token, and a prompt's token takes a tenth of one longer.
TEST(ShapeChooserTest, LongPromptsBeforeShortAnswersAreNotWorthIt) {
  const std::vector<TreeShape> shapes = CandidateShapes(1, 2);
  ShapeChooser chooser(
      shapes, {.steps = {{.num_seqs = 1, .seconds = {1, 1.5}}}, .prompt_token_seconds = 0.1});
  for (int i = 0; i < 100; ++i) chooser.NoteDraft(1, 1, 1);
  EXPECT_EQ(chooser.Choose(1), 1u);
  chooser.NoteTokens(1000, 200);
  EXPECT_EQ(chooser.Choose(1), 0u);
  chooser.NoteTokens(0, 1000);
  EXPECT_EQ(chooser.Choose(1), 1u);
  for (int i = 0; i < 100; ++i) chooser.NoteTokens(1000, 200);
  EXPECT_EQ(chooser.Choose(1), 0u) << "what was long ago has faded";
}

TEST(ShapeChooserTest, CandidatesKeepToWhatIsAllowed) {
  for (const TreeShape& shape : CandidateShapes(8, 64)) EXPECT_NO_THROW(Validate(shape));
  for (const TreeShape& shape : CandidateShapes(4, 8)) {
    EXPECT_LE(shape.branches, 4);
    EXPECT_LE(shape.nodes, 8);
  }
  EXPECT_EQ(CandidateShapes(1, 2).size(), 1u);
}

}  // namespace
}  // namespace quire
