// The memory that steps run in: what a bucket's step reads and writes, laid out once.
#ifndef QUIRE_RUNNER_STEP_MEMORY_H_
#define QUIRE_RUNNER_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/kv_store.h"
#include "attn/plan_storage.h"
#include "attn/step_pack.h"
#include "base/units.h"
#include "decode/sample_rows.h"
#include "device/arena.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/config.h"
#include "model/forward.h"
#include "runner/bucket.h"
#include "runner/runner_options.h"
#include "runner/step_inputs.h"
#include "runner/step_results.h"
#include "step/step.h"

namespace quire {

struct Bucket {
  BucketSize size = {};
  StepCapacity capacity = {};
  StepInputs inputs = {};
  std::unique_ptr<PlanStorage> plans = {};
  // Both in the one activation region that all buckets use in turn.
  ForwardBuffers forward = {};
  cpu::OpScratch scratch = {};
};

struct StepMemory {
  PageRows page_rows;  // of all buckets
  std::vector<Bucket> buckets;
  std::span<std::byte> activations = {};  // what kPoison fills

  // Logits, a block of rows at a time.
  TensorView picked = {};  // [block rows, hidden]
  TensorView normed = {};  // [block rows, hidden]
  TensorView logits = {};  // [block rows, vocab]

  // What is wanted of them, and what comes of it.
  std::optional<SampledRows> next = {};
  SampleResults next_results = {};
  std::vector<SampledRows> scores;           // one per block
  std::vector<SampleResults> score_results;  // as many
  SampleWorkers sample_workers = {};         // one per thread
  StepResults results;

  // Page copies.
  std::span<Slot> copy_from = {};
  std::span<Slot> copy_to = {};
  std::span<std::byte> copy_rows = {};

  ByteOffset table_bytes = {};      // plans and inputs
  ByteOffset workspace_bytes = {};  // everything else
};

// Sizes, or takes, the memory of steps within these limits.
StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, Carver& carver);

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_MEMORY_H_
