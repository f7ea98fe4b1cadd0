// The memory that steps run in: what a bucket's step reads and writes, laid out once.
#ifndef QUIRE_RUNNER_STEP_MEMORY_H_
#define QUIRE_RUNNER_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <vector>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "attn/sequence_step.h"
#include "base/units.h"
#include "device/arena.h"
#include "model/config.h"
#include "model/forward.h"
#include "runner/bucket.h"
#include "runner/runner_options.h"
#include "step/step.h"

namespace quire {

// A step as the model takes it, padded to its bucket.
struct StepInputs {
  std::span<int32_t> tokens = {};        // [num_tokens]
  std::span<TokenCount> positions = {};  // [num_tokens]
  std::span<Slot> slots = {};            // [num_tokens]
  std::span<SequenceStep> seqs = {};     // [num_seqs]
};

// A row of the hidden state whose logits are wanted, and for what.
struct LogitRow {
  int32_t seq = 0;     // of the batch
  int32_t token = 0;   // of the sequence's tokens
  int32_t row = 0;     // of the hidden state
  int32_t result = 0;  // of the first result
};

struct Bucket {
  BucketSize size = {};
  StepCapacity capacity = {};
  StepInputs inputs = {};
  std::unique_ptr<PlanStorage> plans = {};
  ForwardBuffers forward = {};  // in the one activation region that all buckets use in turn
};

struct StepMemory {
  std::vector<std::unique_ptr<std::pmr::monotonic_buffer_resource>> plan_memory;
  std::vector<Bucket> buckets;
  std::span<std::byte> activations = {};  // what kPoison fills

  // Logits, a block of rows at a time.
  std::span<LogitRow> logit_rows = {};
  std::span<float> picked = {};                // [block rows, hidden]
  std::span<float> normed = {};                // [block rows, hidden]
  std::span<float> logits = {};                // [block rows, vocab]
  std::vector<std::span<std::byte>> samplers;  // one per thread

  std::span<StepToken> tokens = {};
  std::span<TokenLogprob> tops = {};  // [results, kMaxTopLogprobs]
  std::span<StepSequenceResult> results = {};

  // Page copies.
  std::span<Slot> copy_from = {};
  std::span<Slot> copy_to = {};
  std::span<std::byte> copy_rows = {};

  ByteOffset table_bytes = {};      // plans and inputs
  ByteOffset workspace_bytes = {};  // everything else
};

// Sizes, or takes, the KV stores of all layers.
std::vector<KvStore> LayOutStores(const ModelConfig& config, const RunnerLimits& limits,
                                  const RunnerOptions& options, Carver& carver);

// Rows of logits computed at once: enough that the head's weights are read for many rows, few
// enough that a vocabulary of 160k takes 40 MiB.
inline constexpr int64_t kLogitBlock = 64;

// Results that one step can have: a token per sample, or one per token scored.
int64_t MaxResults(const RunnerLimits& limits);

// Sizes, or takes, the memory of steps within these limits.
StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, Carver& carver);

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_MEMORY_H_
