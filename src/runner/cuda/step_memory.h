// The memory that steps on the device run in, laid out once: in the device's arena, and where the
// host fills or reads it, in pinned memory of the same form.
#ifndef QUIRE_RUNNER_CUDA_STEP_MEMORY_H_
#define QUIRE_RUNNER_CUDA_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/cuda/plan.h"
#include "attn/step_pack.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "decode/cuda/sampling.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/part_marks.h"
#include "model/config.h"
#include "model/forward.h"
#include "runner/bucket.h"
#include "runner/runner_options.h"
#include "runner/step_results.h"
#include "step/step.h"

namespace quire::cuda {

// New pages that one step brings; more come in steps before it (attn/step_pack.h). Of 64 tokens
// each, that is a prompt of 256k tokens that was found in the prefix tree.
inline constexpr PageCount kNewPages{4096};

// What a step of one bucket brings, in one copy. The same on both sides.
struct BucketInputs {
  std::span<int32_t> tokens = {};        // [num_tokens]
  std::span<TokenCount> positions = {};  // [num_tokens]
  std::span<Slot> slots = {};            // [num_tokens]
  std::span<int32_t> live_tokens = {};   // [1]: how many of them are no padding
  std::span<int32_t> logit_rows = {};    // [head_rows] of the hidden state
  SampleInputs sampling = {};            // counts and items; the rest lies in RareInputs
  std::span<std::byte> bytes = {};       // all of these
};

// Scores of kLogitBlock rows.
struct ScoreInputs {
  std::span<int32_t> rows = {};  // [kLogitBlock] of the hidden state
  SampleInputs sampling = {};
  std::span<std::byte> bytes = {};
};

// What most steps do not have: each part is copied when there is some.
struct RareInputs {
  std::span<Slot> copy_from = {};  // [max_seqs * page_size]
  std::span<Slot> copy_to = {};
  std::span<LogitBias> biases = {};
  std::span<int32_t> text = {};
  std::vector<ScoreInputs> scores;  // [score blocks]
};

// What comes back, in one copy: up to the last score block that was used.
struct Results {
  std::span<int32_t> experts_used = {};  // [num_layers]
  SampleResults next = {};               // [max_samples]
  std::vector<SampleResults> scores;     // [score blocks], kLogitBlock each
  std::vector<ByteOffset> ends;          // [score blocks + 1]: where the piece before ends
  std::span<std::byte> bytes = {};
};

struct Bucket {
  BucketSize size = {};
  StepCapacity capacity = {};
  WorkShape work = {};
  int32_t head_rows = 0;  // rows of logits that its graph computes
  BucketInputs device = {};
  BucketInputs pinned = {};
  std::optional<SampledRows> next = {};  // of pinned
  std::unique_ptr<PlanStorage> plan = {};
  // Both in the one activation region that all buckets use in turn.
  ForwardBuffers forward = {};
  OpScratch scratch = {};
  std::unique_ptr<CudaOps> ops = {};
  std::optional<Graph> graph = {};
  // The same with marks, made when times are first asked for.
  std::optional<Graph> timed_graph = {};
  PartMarks marks = {};
};

struct StepMemory {
  PageRows page_rows;  // of all buckets
  std::vector<Bucket> buckets;
  RareInputs device_rare, pinned_rare;
  std::vector<SampledRows> scores;  // of pinned_rare, one per score block
  Results device_results, pinned_results;
  StepResults results;

  // What kPoison fills.
  std::span<std::byte> activations = {};
  TensorView logits = {};  // [LogitRows(limits), vocab] f32
  TensorView picked = {};  // [LogitRows(limits), hidden] f32
  TensorView normed = {};  // as picked, bf16

  SampleScratch sample_scratch = {};
  std::span<std::byte> copy_rows = {};  // of moved pages
  std::span<std::byte> gemm = {};
  std::span<std::byte> side_gemm = {};  // of products beside others

  ByteOffset table_bytes = {};      // of the device: page rows, plans, inputs and results
  ByteOffset workspace_bytes = {};  // of the device: everything else
};

// Rows of the block of logits.
int64_t LogitRows(const RunnerLimits& limits);

// Sizes, or takes, the memory of steps within these limits, on both sides, for a device of num_sms
// multiprocessors. The two carvers both
// count or both hand out.
StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, int32_t num_sms, Carver& device,
                       Carver& pinned);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_STEP_MEMORY_H_
