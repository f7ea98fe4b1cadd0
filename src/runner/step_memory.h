// The memory that steps run in, laid out once for every backend.
//
// The runner fills inputs and reads outputs in the host's memory; where the backend computes elsewhere,
// a block of the same form lies there, and the two carvers differ. What the backend needs besides -
// plans, scratch of its ops - it takes through a StepLayout.
#ifndef QUIRE_RUNNER_STEP_MEMORY_H_
#define QUIRE_RUNNER_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/expansion.h"
#include "attn/sequence_step.h"
#include "attn/step_pack.h"
#include "base/executor.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "decode/sample_items.h"
#include "decode/tree_growth.h"
#include "device/arena.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/forward.h"
#include "runner/bucket.h"
#include "runner/runner_options.h"
#include "runner/step_results.h"
#include "step/step.h"

namespace quire {

// What a step of one bucket brings, in one piece of memory.
struct BucketInputs {
  std::span<int32_t> tokens = {};        // [num_tokens]
  std::span<TokenCount> positions = {};  // [num_tokens]
  std::span<Slot> slots = {};            // [num_tokens]
  std::span<int32_t> live_tokens = {};   // [1]: how many of them are no padding
  Expansion expansion = {};              // of a bucket that expands
  std::span<int32_t> logit_rows = {};    // [head_rows] of the hidden state
  SampleInputs sampling = {};            // counts and items; the rest lies in RareInputs
  std::span<std::byte> bytes = {};       // all of these
};

// What scores of kLogitBlock rows bring.
struct ScoreInputs {
  std::span<int32_t> rows = {};  // [kLogitBlock] of the hidden state
  SampleInputs sampling = {};
  std::span<std::byte> bytes = {};
};

// What most steps do not have.
struct RareInputs {
  std::span<Slot> move_from = {};  // [MaxMoves]
  std::span<Slot> move_to = {};
  std::span<Slot> copy_from = {};  // [max_seqs * page_size]
  std::span<Slot> copy_to = {};
  std::span<LogitBias> biases = {};
  std::span<int32_t> text = {};
  std::span<uint32_t> masks = {};
  std::vector<ScoreInputs> scores;  // [score blocks]
};

// What a pass of the draft layer brings beside its rows, which are a bucket's, in one piece of memory.
struct DraftInputs {
  SampleInputs sampling = {};        // of DraftCapacity
  std::span<int32_t> wanted = {};    // [num_draft_rows]: rows of which states and tokens are wanted
  std::span<int32_t> state_of = {};  // [num_step_states]: which state each row takes; last
  std::span<std::byte> bytes = {};   // all of these
};

// What trees that grow on a device take; nothing where none do.
GrowthRoom GrowthRoomOf(const RunnerLimits& limits, const RunnerOptions& options);

// Rows that one step can move: those of the trees of all sequences.
int64_t MaxMoves(const RunnerLimits& limits);

// What comes back, in one piece of memory: up to the last score block that was used.
struct StepOutputs {
  std::span<int32_t> experts_used = {};  // [num_layers]
  SampleResults next = {};               // [MaxNextItems]
  TreeNodes trees = {};                  // of GrowthRoomOf, where trees grow
  std::vector<SampleResults> scores;     // [score blocks], kLogitBlock each
  std::vector<ByteOffset> ends;          // [score blocks + 1]: where the piece before ends
  std::span<std::byte> bytes = {};
};

struct Bucket {
  BucketSize size = {};
  StepCapacity capacity = {};
  WorkShape work = {};
  int32_t head_rows = 0;        // rows of which tokens can be drawn
  int32_t draft_rows = 0;       // the same of a pass of the draft layer; 0: none runs in it
  bool is_head = false;         // one of StepMemory::heads
  TokenCount expanded_keys{0};  // rows for keys of sequences that are expanded
  BucketInputs host = {};
  BucketInputs device = {};              // host's own where the host computes
  std::optional<SampledRows> next = {};  // over host
  ForwardBuffers forward = {};  // in the one activation region that all buckets use in turn
  // Where an EAGLE-3 head drafts, there too: what it takes of the model's layers, and that normed.
  TensorView layer_inputs = {};   // [num_tokens, layers * hidden] of activations' type
  TensorView normed_inputs = {};  // as layer_inputs; empty where the head has no norms for them
};

struct StepMemory {
  PageRows page_rows;  // of all buckets, where the backend computes
  std::vector<Bucket> buckets;
  // Where an EAGLE-3 head drafts, for every bucket: sizes, plan and buffers of its passes there, whose inputs
  // are the bucket's. They are numbered behind the buckets; where no pass runs, there is nothing.
  std::vector<Bucket> heads = {};
  RareInputs host_rare, device_rare;
  StepOutputs host_outputs, device_outputs;
  std::vector<SampledRows> scores;  // over host_rare, one per block
  StepResults results;
  DraftInputs host_draft, device_draft;
  SampleResults host_tops, device_tops;    // of rows that a pass of the draft layer wants tokens of
  std::optional<SamplePacker> draft_tops;  // over host_draft, where there are such passes

  // The host's view of the step at hand, and of steps that only bring pages.
  std::span<SequenceStep> seqs = {};  // [rows of the largest bucket]
  std::span<RowUse> uses = {};        // as many
  std::span<SequenceStep> carriers = {};
  std::span<RowUse> carrier_uses = {};

  std::span<std::byte> activations = {};  // what kPoison fills, with the next three
  TensorView picked = {};                 // [logit rows, hidden] f32
  TensorView normed = {};                 // [logit rows, hidden] of activations' type
  TensorView logits = {};                 // [logit rows, vocab] f32
  std::span<std::byte> copy_rows = {};    // that are moved or copied
  // [num_step_states, or more, hidden] of activations' type, of a model that drafts: the states of the
  // last step's tokens (ForwardArgs::states), behind them those that a drafter keeps, and those of the rows that
  // the last pass of the draft layer was asked for. No bucket's activations lie there.
  TensorView states = {};
  int32_t num_step_states = 0;  // tokens of the largest bucket
  int32_t first_row_state = 0;
  int32_t num_draft_rows = 0;  // of which a pass of the draft layer may want tokens; 0: none runs

  // Of the memory where the backend computes:
  ByteOffset table_bytes = {};      // page rows, plans and inputs
  ByteOffset workspace_bytes = {};  // everything else
  ByteOffset attention_bytes = {};  // of the workspace, partial results of attention
  ByteOffset selection_bytes = {};  // of the workspace, chosen keys and the search for them
  ByteOffset expanded_bytes = {};   // of the workspace, prompts' keys and values of all heads
};

// How a backend wants its steps laid out, and what it takes besides.
struct StepLayout {
  DType activation = DType::kF32;
  StepMode buckets = StepMode::kGraph;  // kEager: one bucket for all steps
  int64_t logit_rows = kLogitBlock;     // computed at once
  FunctionRef<WorkShape(const BucketSize&)> work;
  FunctionRef<WorkShape(const BucketSize&)> head_work;  // of an EAGLE-3 head's passes
  FunctionRef<ByteOffset(const OpLimits&)> attention;
  FunctionRef<ByteOffset(const OpLimits&)> selection;
  // Rows for the keys of sequences that attend in multi-head form, and what one takes; 0: none do.
  TokenCount expanded_keys{0};
  ByteOffset expanded_key_bytes{0};
  // Take the memory of bucket i's plan and of its ops; a head's are behind the others. A function that takes
  // memory runs more than once, and only its last call counts.
  FunctionRef<void(size_t i, const Bucket&, const PageRows&, Carver& device, Carver& host)> plan;
  FunctionRef<void(size_t i, const OpLimits&, Carver& region)> ops;
  FunctionRef<void(Carver& device)> more;
};

// Sizes, or takes, the memory of steps within these limits. `host` is `device` itself where the host
// computes; both count, or both hand out.
StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, const StepLayout& layout, Carver& device,
                       Carver& host);

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_MEMORY_H_
