// How a model is to be run.
#ifndef QUIRE_RUNNER_RUNNER_OPTIONS_H_
#define QUIRE_RUNNER_RUNNER_OPTIONS_H_

#include <cstdint>
#include <limits>

#include "attn/kv_layout.h"
#include "base/faults.h"
#include "base/units.h"

namespace quire {

struct OpenedHead;  // model/eagle.h

// kEager runs every step at its own size. kGraph pads every step to one of a fixed list of buckets,
// whose buffers have constant addresses: what a captured graph needs, and bit for bit the same.
enum class StepMode { kEager, kGraph };

// kOff, or kPoison: activations and logits are filled with NaN before every step, so that a value
// which is read before it is written shows.
enum class StepChecks { kOff, kPoison };

// The pool where nobody says how many tokens it holds: room for max_seqs sequences of the full
// context, or what fits. kModest bounds this by a quarter of the weights' bytes, or kModestPool if
// that is more, but has room for one sequence: a model of 24 MB takes no gigabytes.
enum class PoolRoom { kEverySequence, kModest };
inline constexpr ByteOffset kModestPool{int64_t{256} << 20};

// What the index keys of a sparse model are stored as. kAuto is f32 for f32 weights, and fp8 otherwise.
enum class IndexKeyType { kAuto, kF32, kBf16, kFp8 };
// How fp8 index keys lie in a page. kPreshuffled needs pages of a multiple of 16 tokens; kAuto is what
// both backends are faster with: kPlain.
enum class IndexKeyLayout { kAuto, kPlain, kPreshuffled };

struct RunnerOptions {
  PageSize page_size{64};
  TokenCount context{0};  // 0: what the model was made for
  int32_t max_seqs = 16;
  TokenCount max_step_tokens{512};  // of all sequences of a step: how long a prefill chunk can be
  TokenCount tree_nodes{0};         // of one sequence's tree; 0: steps take no trees
  TokenCount pool_tokens{0};        // 0: pool_room says
  PoolRoom pool_room = PoolRoom::kEverySequence;
  KvFormat kv_format = KvFormat::kLatentBf16;
  IndexKeyType index_type = IndexKeyType::kAuto;
  IndexKeyLayout index_layout = IndexKeyLayout::kAuto;
  int32_t index_top_k = 0;  // what queries of a sparse model choose; 0: the model's own, else less
  // The model's draft layer is loaded, and keeps its rows in the pages too.
  bool draft_layer = false;
  // With draft_layer: an EAGLE-3 head, which drafts in place of the model's own layer, or null. It outlives
  // the making of the runner. Of one rank.
  const OpenedHead* head = nullptr;
  int32_t draft_branches =
      0;  // rows of each sequence that a pass of it wants tokens of; 0: none runs
  // Ranks that compute the model together, with the same bits as one, and which of them this is
  // (model/config.h, WithShard). Each has a KV cache of its own with all tokens in it; the threads and the
  // memory limit below are of each.
  int32_t tp_size = 1;
  int32_t ep_size = 1;
  // Or ranks that compute tokens of their own, and share experts out (WithOwnTokens). Each has a runner, and
  // a KV cache with its tokens alone; the limits above are of each, too.
  int32_t dp_size = 1;
  int32_t rank = 0;
  StepMode mode = StepMode::kEager;
  StepChecks checks = StepChecks::kOff;
  // On a device: a row's bits do not depend on the batch either, for some speed. On the CPU they
  // never do.
  bool deterministic = false;
  int32_t num_threads = 1;
  ByteOffset memory_limit{std::numeric_limits<int64_t>::max()};  // of everything together
  Faults faults = {};

  int32_t num_ranks() const { return tp_size * dp_size; }
};

}  // namespace quire

#endif  // QUIRE_RUNNER_RUNNER_OPTIONS_H_
