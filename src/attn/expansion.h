// Sequences of a step that attend in multi-head form (kernels/mha_prefill.h), and how that work is cut.
//
// Latent form reads a short row per key and computes much with it; multi-head form first brings every
// key up to a key and a value of each head, and then computes a third of it. So it pays where many
// queries share the keys: for prompts. The rows that keys are brought up to are a buffer of the step,
// in which every such sequence has its keys from position 0 on, in blocks of kExpandedBlock.
//
// The host cuts the work, since it knows the lengths; the numbers are in memory that kernels read when
// they run, so one recorded launch serves every step.
#ifndef QUIRE_ATTN_EXPANSION_H_
#define QUIRE_ATTN_EXPANSION_H_

#include <cstdint>
#include <span>

#include "attn/sequence_step.h"
#include "base/host_device.h"
#include "base/units.h"
#include "device/arena.h"

namespace quire {

// Rows that a sequence begins on a multiple of: the most keys, and the queries, of a tile.
inline constexpr TokenCount kExpandedBlock{128};

// Rows [kExpandedBlock * i, + kExpandedBlock) of the buffer, for block i.
struct ExpandedBlock {
  int32_t seq = 0;
  int32_t position = 0;  // of the first key
  int32_t count = 0;     // keys; rows behind them are zeros

  friend bool operator==(const ExpandedBlock&, const ExpandedBlock&) = default;
};

// Up to kExpandedBlock queries of one sequence. A kernel that takes the tiles of a sequence head by head
// reads each head's keys once from memory, so a tile knows those that it lies between.
struct ExpandedTile {
  int32_t q_begin = 0;  // first query, counted over the whole step
  int32_t q_count = 0;
  int32_t visible = 0;  // keys that the first query sees, and every next one more; 0 or less: none
  int32_t first_row = 0;   // of the sequence, in the buffer
  int32_t first_tile = 0;  // of the sequence
  int32_t num_tiles = 0;   // likewise

  // No query of the tile sees more keys.
  QUIRE_HD constexpr int32_t most_visible() const { return visible + q_count - 1; }

  friend bool operator==(const ExpandedTile&, const ExpandedTile&) = default;
};

struct ExpansionCounts {
  int32_t num_tiles = 0;
  int32_t row_offsets[2] = {0, 0};  // 0, and how many rows are used
};

// On the host or on a device.
struct Expansion {
  std::span<ExpansionCounts> counts = {};  // [1]
  std::span<ExpandedTile> tiles = {};  // sequence by sequence; of each those that see most first
  std::span<ExpandedBlock> blocks = {};
};

// Of steps with so many sequences and query tokens, and rows for so many keys.
Expansion LayOutExpansion(int32_t num_seqs, TokenCount query_tokens, TokenCount keys,
                          Carver& carver);

// Rows that a sequence with kv_len keys takes.
constexpr TokenCount ExpandedRows(TokenCount kv_len) {
  return kExpandedBlock * CeilDiv(kv_len, kExpandedBlock);
}

// Cuts the work of those of `seqs` that are `expanded`. Throws Error(kCapacityExceeded) for more than
// there is room for, and Error(kInvalidArgument) for a tree among them.
void CutExpansion(std::span<const SequenceStep> seqs, const Expansion& to);

}  // namespace quire

#endif  // QUIRE_ATTN_EXPANSION_H_
