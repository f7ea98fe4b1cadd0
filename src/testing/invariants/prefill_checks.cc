#include "testing/invariants/prefill_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/maths.h"
#include "base/units.h"
#include "interop/prefill_plan.h"
#include "testing/active_faults.h"
#include "testing/red_zone.h"

namespace quire::testing {
namespace {

template <class Block>
class PrefillOut {
 public:
  PrefillOut(const StepCapacity& capacity, const PrefillShape& shape) {
    const int64_t tiles = PrefillQueryTiles(capacity, shape);
    plan_ = {.shape = shape,
             .arrays = {.qo_indptr = Add(IndptrEntries(capacity)),
                        .kv_indptr = Add(IndptrEntries(capacity)),
                        .kv_lens = Add(capacity.num_seqs),
                        .work_indptr = Add(int64_t{shape.num_workers} + 1),
                        .work_info = Add(PrefillWorks(capacity, shape) * kNumWorkFields),
                        .reduce_indptr = Add(tiles + 1),
                        .reduce_final_map = Add(2 * tiles),
                        .reduce_partial_map = Add(PrefillPartials(capacity, shape))}};
  }

  const PrefillPlan<Block>& plan() const { return plan_; }
  std::string Damage() const {
    std::string damage;
    for (const auto& zone : zones_) damage += zone->Damage();
    return damage;
  }
  bool Untouched() const {
    return std::all_of(zones_.begin(), zones_.end(),
                       [](const auto& zone) { return zone->Untouched(); });
  }

 private:
  std::span<int32_t> Add(int64_t size) {
    zones_.push_back(std::make_unique<RedZone<int32_t>>(Index(size)));
    return zones_.back()->span();
  }

  std::vector<std::unique_ptr<RedZone<int32_t>>> zones_;
  PrefillPlan<Block> plan_;
};

// Lengths alone: a prefill plan looks at no page.
std::vector<SequenceStep> DrawPrefill(const Trial& trial, const PrefillShape& shape) {
  std::vector<SequenceStep> seqs;
  const int64_t num_seqs = trial.random.Between(1, std::min<int64_t>(trial.bucket.num_seqs, 8));
  for (int64_t b = 0; b < num_seqs; ++b) {
    const int64_t q_len = trial.random.Between(0, shape.max_q_len.raw());
    // Now and then fewer keys than queries.
    const int64_t kv_len = trial.random.OneIn(8)
                               ? trial.random.Between(0, q_len)
                               : q_len + trial.random.Between(0, trial.config.context);
    seqs.push_back({.q_len = TokenCount(q_len),
                    .kv_len = TokenCount(kv_len),
                    .pages = {},
                    .tree_parents = {}});
  }
  return seqs;
}

template <class Block>
PrefillShape DrawPrefillShape(const Trial& trial) {
  const int64_t block = Block::BlockTokens(trial.config.page_size).raw();
  const int64_t query_granularity = trial.random.Between(4, 64);
  return {.num_heads_k = ToInt32(trial.random.Between(1, 4)),
          .heads_per_key_head = ToInt32(trial.random.Between(1, 2)),
          .num_workers = ToInt32(trial.random.Between(1, 12)),
          .max_q_len = TokenCount(trial.random.Between(1, 4 * query_granularity)),
          .query_granularity = TokenCount(query_granularity),
          .kv_granularity = TokenCount(block * trial.random.Between(1, 1 + 128 / block)),
          .mask = trial.random.OneIn(4) ? PrefillMask::kFull : PrefillMask::kCausal};
}

// One query tile of one key head, put together from its pieces.
struct PrefillTile {
  int64_t blocks = 0;  // covered so far
  int32_t kv_offset = -1;
  std::vector<int32_t> partial_rows;
};
// By (sequence, first query, last query + 1, heads).
using PrefillTiles = std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, PrefillTile>;

// The blocks that a tile must cover: those of [0, ceil_kg(eff)) that the sequence has.
template <class Block>
int64_t BlocksToCover(const PrefillShape& shape, const SequenceStep& seq, int64_t q_end,
                      PageSize page_size) {
  const int64_t kv_len = seq.kv_len.raw();
  const int64_t sight = shape.mask == PrefillMask::kFull
                            ? kv_len
                            : std::clamp<int64_t>(kv_len - seq.q_len.raw() + q_end, 0, kv_len);
  const int64_t rounded = RoundUp(sight, shape.kv_granularity.raw());
  return Block::BlocksFor(page_size, TokenCount(std::min(rounded, kv_len)));
}

template <class Block>
void CollectPieces(const PrefillPlan<Block>& plan, std::span<const SequenceStep> seqs,
                   int64_t block_tokens, PrefillTiles& tiles) {
  const PrefillArrays& arrays = plan.arrays;
  ASSERT_EQ(arrays.work_indptr[0], 0);
  for (int64_t w = 0; w < plan.shape.num_workers; ++w) {
    const int64_t begin = arrays.work_indptr[Index(w)], end = arrays.work_indptr[Index(w) + 1];
    ASSERT_LE(begin, end);
    ASSERT_LE(end * kNumWorkFields, std::ssize(arrays.work_info));
    for (int64_t i = begin; i < end; ++i) {
      const auto work = arrays.work_info.subspan(Index(i * kNumWorkFields), kNumWorkFields);
      const int32_t seq = work[kWorkSeq];
      ASSERT_TRUE(seq >= 0 && seq < std::ssize(seqs));
      PrefillTile& tile =
          tiles[{seq, work[kWorkQueryBegin], work[kWorkQueryEnd], work[kWorkHeads]}];
      ASSERT_NE(tile.kv_offset, 0) << "a piece behind the last one";
      ASSERT_EQ(work[kWorkKvBegin] - arrays.kv_indptr[Index(seq)], tile.blocks)
          << "pieces of the tile at query " << work[kWorkQueryBegin] << " leave a gap or overlap";
      tile.blocks = work[kWorkKvEnd] - arrays.kv_indptr[Index(seq)];
      tile.kv_offset = work[kWorkKvOffset];
      tile.partial_rows.push_back(work[kWorkPartialRow]);
      if (tile.kv_offset == 0) continue;
      ASSERT_EQ(tile.kv_offset, seqs[Index(seq)].kv_len.raw() - tile.blocks * block_tokens);
    }
  }
}

// The groups to merge are the cut tiles, in query order.
void CheckReduceMaps(const PrefillArrays& arrays, const PrefillTiles& tiles, const Trial& trial) {
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> cut;
  for (const auto& [key, tile] : tiles) {
    const auto& [seq, q_begin, q_end, heads] = key;
    if (tile.partial_rows.size() == 1) {
      ASSERT_EQ(tile.partial_rows[0], -1);
      continue;
    }
    trial.facts.set(kCutPrefill);
    const auto [it, is_new] = cut.try_emplace({q_begin, q_end}, tile.partial_rows);
    ASSERT_EQ(it->second, tile.partial_rows) << "heads are cut differently";
  }
  int32_t group = 0, total = 0;
  for (const auto& [queries, partial_rows] : cut) {
    ASSERT_EQ(arrays.reduce_final_map[Index(2 * group)], queries.first);
    ASSERT_EQ(arrays.reduce_final_map[Index(2 * group + 1)], queries.second);
    ASSERT_EQ(arrays.reduce_indptr[Index(group)], total);
    for (int32_t row : partial_rows) {
      ASSERT_EQ(arrays.reduce_partial_map[Index(total++)], row);
    }
    ++group;
  }
  for (size_t g = Index(group); g < arrays.reduce_indptr.size(); ++g) {
    ASSERT_EQ(arrays.reduce_indptr[g], total);
  }
}

template <class Block>
void CheckPrefill(const Trial& trial) {
  const PrefillShape shape = DrawPrefillShape<Block>(trial);
  const std::vector<SequenceStep> seqs = DrawPrefill(trial, shape);
  StepCapacity capacity = trial.bucket;
  if (trial.random.OneIn(2)) capacity.num_seqs = ToInt32(std::ssize(seqs));
  PrefillOut<Block> out(capacity, shape);
  if (seqs.size() > 1) {
    StepCapacity less = capacity;
    less.num_seqs = ToInt32(std::ssize(seqs)) - 1;
    ExpectRefused("prefill sequences", ErrorCode::kCapacityExceeded,
                  [&] { PlanPrefill<Block>(seqs, less, out.plan(), ActiveFaults()); });
    EXPECT_TRUE(out.Untouched());
  }
  PlanPrefill<Block>(seqs, capacity, out.plan(), ActiveFaults());
  EXPECT_EQ(out.Damage(), "");
  PrefillTiles tiles;
  CollectPieces(out.plan(), seqs, Block::BlockTokens(trial.config.page_size).raw(), tiles);
  QUIRE_RETURN_IF_FAILED();
  int64_t num_tiles = 0, queries = 0;
  for (int64_t b = 0; b < std::ssize(seqs); ++b) {
    const int64_t q_len = seqs[Index(b)].q_len.raw();
    for (int64_t begin = 0; begin < q_len; begin += shape.query_granularity.raw()) {
      const int64_t end = std::min(begin + shape.query_granularity.raw(), q_len);
      const int64_t blocks =
          BlocksToCover<Block>(shape, seqs[Index(b)], end, trial.config.page_size);
      for (int32_t head = 0; head < shape.num_heads_k; ++head, ++num_tiles) {
        const int32_t heads = shape.heads_per_key_head;
        const int32_t packed = head * heads | (head + 1) * heads << 16;
        const auto tile =
            tiles.find({ToInt32(b), ToInt32(queries + begin), ToInt32(queries + end), packed});
        ASSERT_TRUE(tile != tiles.end()) << "no work for row " << b << ", queries from " << begin;
        ASSERT_EQ(tile->second.blocks, blocks)
            << "prefill plan: pieces of row " << b << ", queries from " << begin;
        ASSERT_EQ(tile->second.kv_offset, 0) << "the tile is not finished";
      }
    }
    queries += q_len;
  }
  ASSERT_EQ(num_tiles, std::ssize(tiles));
  CheckReduceMaps(out.plan().arrays, tiles, trial);
}

}  // namespace

void CheckPrefillPlans(const Trial& trial) {
  CheckPrefill<TokenBlocks>(trial);
  QUIRE_RETURN_IF_FAILED();
  CheckPrefill<PageBlocks>(trial);
}

}  // namespace quire::testing
