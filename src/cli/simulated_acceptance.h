// Drafts whose guesses are right by decree, for `quire bench --simulate-accept-length` alone: with made-up
// weights none would be, and what is asked is what a step costs.
#ifndef QUIRE_CLI_SIMULATED_ACCEPTANCE_H_
#define QUIRE_CLI_SIMULATED_ACCEPTANCE_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "decode/drafter.h"
#include "runner/metered_runner.h"
#include "step/step.h"

namespace quire::cli {

// A target that draws what makes so many tokens of a draft right.
class SimulatedAcceptance final : public RunnerOver {
 public:
  // A draft gives `length` tokens on average, the one behind it among them, where it is as deep.
  SimulatedAcceptance(std::unique_ptr<MeteredRunner> target, double length);

  const RunnerLimits& limits() const override { return target_->limits(); }
  void Submit(const StepBatch& batch) override;
  const StepResult& Collect() override;

  DraftRunner* draft_runner() override { return target_->draft_runner(); }

 private:
  void Decree(const StepSequence& seq, std::span<StepToken> drawn);
  int32_t TokenUnlike(std::span<const int32_t> others);

  const double length_;
  double owed_ = 0;         // tokens that the drafts so far should have given, and did not
  std::mt19937 random_{3};  // any seed
  std::span<const StepSequence> step_;         // the sequences of the step at hand
  std::vector<std::vector<StepToken>> drawn_;  // of each
  std::vector<StepAnswer> answers_;
  std::vector<StepSequenceResult> results_;
  StepResult result_;
};

// Chains of any tokens, as long as there is room for.
class AnyChains final : public Drafter {
 public:
  explicit AnyChains(int64_t vocab_size) : vocab_size_(static_cast<uint32_t>(vocab_size)) {}

  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override;

 private:
  const uint32_t vocab_size_;
  std::mt19937 random_{4};  // any seed
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_SIMULATED_ACCEPTANCE_H_
