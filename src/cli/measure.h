// Steps of a runner, run and timed, with what each had to read and compute.
#ifndef QUIRE_CLI_MEASURE_H_
#define QUIRE_CLI_MEASURE_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/units.h"
#include "cache/page_pool.h"
#include "kernels/cpu/roof.h"
#include "model/config.h"
#include "runner/layer_drafter.h"
#include "runner/metered_runner.h"
#include "step/step.h"

namespace quire::cli {

// Steps of one kind; sums over all of them.
struct Measurement {
  int64_t batch = 0;   // sequences
  int64_t length = 0;  // prefill: tokens of a prompt; decode: tokens a sequence has before it
  int64_t steps = 0;
  int64_t tokens = 0;
  double flops = 0;
  double weight_bytes = 0;  // that must be read: model/cost.h
  double kv_bytes = 0;      // that must be read
  double seconds = 0;
  StepTimes part_seconds = {};
  int32_t fewest_experts = 0;  // that had rows in a layer, of any step; 0 where nobody counts them

  double TokensPerSecond() const { return static_cast<double>(tokens) / seconds; }
  double SecondsPerStep() const { return seconds / static_cast<double>(steps); }
  double FlopsPerSecond() const { return flops / seconds; }
  double BytesPerSecond() const { return (weight_bytes + kv_bytes) / seconds; }
  double FlopsPerToken() const { return flops / static_cast<double>(tokens); }
};

// Steps of sequences that are drafted for; sums over all of them.
struct DraftMeasurement {
  int64_t batch = 0;   // sequences
  int64_t length = 0;  // tokens that a sequence has before the first step
  int64_t steps = 0;
  int64_t drafts = 0;                  // of sequences, in all steps
  int64_t tokens = 0;                  // that came of the steps
  std::vector<int64_t> right_at = {};  // drafts whose guesses were right up to each depth
  double seconds = 0;
  int32_t fewest_experts = 0;  // as a Measurement's

  double SecondsPerStep() const { return seconds / static_cast<double>(steps); }
  double TokensPerSecond() const { return static_cast<double>(tokens) / seconds; }
  // Of one sequence.
  double TokensPerStep() const {
    return static_cast<double>(tokens) / static_cast<double>(steps * batch);
  }
};

// Tokens that a sequence of DecodeWithDrafts has at most behind its context.
TokenCount RoomForDrafts(const TreeShape& shape, int64_t steps);

// Seconds that the roofs allow at best: memory or arithmetic, whichever takes longer.
double RoofSeconds(const Measurement& measurement, const cpu::Roofs& roofs);
double ReadSeconds(const Measurement& measurement, const cpu::Roofs& roofs);
double ArithmeticSeconds(const Measurement& measurement, const cpu::Roofs& roofs);

// Random tokens from one fixed seed: what a token is matters to the choice of experts only.
class StepMeter {
 public:
  // `config` is the runner's; both outlive this.
  StepMeter(MeteredRunner& runner, const ModelConfig& config);

  // Prompts of `length` tokens, in steps as full as they can be, until all are done or `seconds`
  // have passed: the steps are much alike.
  Measurement Prefill(int64_t batch, TokenCount length, double seconds);

  // `steps` tokens for each of `batch` sequences that have `context` tokens before. What the KV
  // holds does not matter to the speed of dense attention: rows that no prefill wrote are zeros, in
  // memory of their own. Sparse attention finds keys of tokens everywhere, which the constructor
  // copies into all pages: zeros would all score the same, and the first keys be chosen.
  Measurement Decode(int64_t batch, TokenCount context, int64_t steps);

  // The same of a runner that drafts in this shape. The sequences go on with what it says, behind prompts that
  // it computes first: a draft layer has to have seen the whole text.
  DraftMeasurement DecodeWithDrafts(int64_t batch, TokenCount context, int64_t steps,
                                    const TreeShape& shape);

 private:
  struct Text;
  void Begin(std::span<Text> texts);
  void FillPages();
  int32_t RandomToken();
  void RunStep(const StepBatch& batch, Measurement& sum);
  // result_ is what came of it.
  double SecondsOfStep(const StepBatch& batch);

  MeteredRunner& runner_;
  const ModelConfig& config_;
  PagePool pool_;
  std::mt19937 random_{20};  // any seed
  const StepResult* result_ = nullptr;
  uint64_t next_id_ = 1;  // of sequences that are drafted for
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_MEASURE_H_
