// What a runner takes from the machine, known before it is taken.
#ifndef QUIRE_RUNNER_MEMORY_PLAN_H_
#define QUIRE_RUNNER_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attn/kv_layout.h"
#include "base/executor.h"
#include "base/units.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/runner_options.h"
#include "step/step.h"

namespace quire {

// Of one of several ranks.
struct RankMemory {
  ByteOffset weights = {};
  ByteOffset arena = {};  // what it takes at once, its weights among it
};

struct MemoryPlan {
  RunnerLimits limits = {};            // with every default resolved
  int32_t num_ranks = 1;               // the parts below are of one of them
  int32_t num_groups = 1;              // of ranks, each of which has tokens of its own
  std::vector<RankMemory> ranks = {};  // each of them, where there are several
  ByteOffset weights = {};
  ByteOffset draft_weights = {};  // of these, an EAGLE-3 head's
  ByteOffset kv_per_token = {};   // of all layers
  ByteOffset kv_per_page = {};
  ByteOffset kv = {};               // of limits.pool_pages pages
  ByteOffset workspace = {};        // activations, logits, sampling, results
  ByteOffset index_per_token = {};  // of kv_per_token, index keys of a sparse model
  ByteOffset draft_per_token = {};  // of kv_per_token, what a draft layer or an EAGLE-3 head keeps
  ByteOffset attention = {};        // of the workspace, partial results of attention
  // Of the workspace of a sparse model, chosen keys and the search for them: the same for every context.
  ByteOffset selection = {};
  ByteOffset expanded = {};     // of the workspace, keys and values of prompts in multi-head form
  ByteOffset step_tables = {};  // page rows; plans and inputs of every bucket
  // Of a device, what is in use besides: its context, the code of kernels, recorded graphs. Measured:
  // before there is a runner as far as it is there already, and by the runner once it is ready.
  ByteOffset outside = {};

  // What the runner takes at once, and lays out itself.
  ByteOffset arena() const { return weights + kv + workspace + step_tables; }
  ByteOffset total() const { return arena() + outside; }
  // What all ranks take at once.
  ByteOffset arena_of_all() const;
  PageCount usable_pages() const { return limits.pool_pages - PageCount(1); }
  TokenCount usable_tokens() const { return limits.page_size.TokensIn(usable_pages()); }
  // Sequences of the full context that fit at once.
  double Concurrency() const {
    return static_cast<double>(usable_tokens().raw()) / static_cast<double>(limits.context.raw());
  }
};

// The plan of a runner with these options, of several ranks that of options.rank: the pool has as many
// pages as the rank with the least room for them. Checks that every weight is there; reads no data. Throws
// Error(kInvalidArgument) as WeightSource does or if an option is out of range, and
// Error(kCapacityExceeded), with every part of the need, if the memory limit is too small for one
// sequence of the full context.
MemoryPlan MakeMemoryPlan(const ModelConfig& config, WeightSource& source,
                          const RunnerOptions& options);

// The plan as the table that users see: the parts of one rank, and what each of several takes.
std::string ToTable(const MemoryPlan& plan);

// "1.50 GiB", "656 B".
std::string FormatBytes(ByteOffset bytes);

}  // namespace quire

#endif  // QUIRE_RUNNER_MEMORY_PLAN_H_
