#include "attn/capacity.h"

#include <algorithm>

#include "attn/checks.h"
#include "base/error.h"
#include "base/maths.h"

namespace quire {
void Validate(const StepCapacity& capacity) {
  Require(capacity.num_seqs >= 0, "capacity.num_seqs: expected >= 0, got {}", capacity.num_seqs);
  Require(capacity.query_tokens >= TokenCount(0), "capacity.query_tokens: expected >= 0, got {}",
          capacity.query_tokens);
  Require(capacity.context >= TokenCount(0), "capacity.context: expected >= 0, got {}",
          capacity.context);
  Require(capacity.tree_nodes >= TokenCount(0), "capacity.tree_nodes: expected >= 0, got {}",
          capacity.tree_nodes);
  Require(capacity.pool_pages >= PageCount(1),
          "capacity.pool_pages: expected >= 1 (the scratch page), got {}", capacity.pool_pages);
}

void Validate(const WorkShape& shape) {
  Require(shape.query_tile >= TokenCount(1), "work.query_tile: expected >= 1, got {}",
          shape.query_tile);
  Require(shape.split >= kKeyTile && shape.split.raw() % kKeyTile.raw() == 0,
          "work.split: expected a positive multiple of {}, got {}", kKeyTile, shape.split);
  Require(shape.num_workers >= 1, "work.num_workers: expected >= 1, got {}", shape.num_workers);
  Require(shape.ctas >= 1, "work.ctas: expected >= 1, got {}", shape.ctas);
  Require(shape.tile_cost >= 1, "work.tile_cost: expected >= 1, got {}", shape.tile_cost);
  Require(shape.cut_cost >= 0, "work.cut_cost: expected >= 0, got {}", shape.cut_cost);
  Require(shape.enough_workers >= 0 && shape.enough_workers <= shape.num_workers,
          "work.enough_workers: expected 0..{}, got {}", shape.num_workers, shape.enough_workers);
  Require(shape.unread >= TokenCount(0), "work.unread: expected >= 0, got {}", shape.unread);
  Require(shape.most_keys >= TokenCount(1), "work.most_keys: expected >= 1, got {}",
          shape.most_keys);
}

std::string ToString(const StepCapacity& capacity) {
  return fmt::format(
      "num_seqs {}, query_tokens {}, context {}, tree_nodes {}, page_size {}, pool_pages {}",
      capacity.num_seqs, capacity.query_tokens, capacity.context, capacity.tree_nodes,
      capacity.page_size, capacity.pool_pages);
}

StepCapacity CapacityOf(std::span<const SequenceStep> seqs, PageSize page_size,
                        PageCount pool_pages) {
  StepCapacity capacity{.num_seqs = static_cast<int32_t>(seqs.size()),
                        .query_tokens = TokenCount(0),
                        .context = TokenCount(0),
                        .tree_nodes = TokenCount(0),
                        .page_size = page_size,
                        .pool_pages = pool_pages};
  for (const SequenceStep& seq : seqs) {
    capacity.query_tokens += seq.q_len;
    capacity.context = Max(capacity.context, seq.committed());
    capacity.tree_nodes = Max(capacity.tree_nodes, seq.num_nodes());
  }
  return capacity;
}

PageCount PageTableWidth(const StepCapacity& capacity) {
  return capacity.page_size.PagesFor(capacity.KvTokens());
}

int64_t PageTableEntries(const StepCapacity& capacity) {
  return (PageTableWidth(capacity) * capacity.num_seqs).raw();
}

int32_t TreeMaskWords(const StepCapacity& capacity) {
  return static_cast<int32_t>(CeilDiv(capacity.tree_nodes, TokenCount(64)));
}

int64_t TreeMaskEntries(const StepCapacity& capacity) {
  return (capacity.query_tokens * TreeMaskWords(capacity)).raw();
}

int64_t MaxQueryTiles(const StepCapacity& capacity, const WorkShape& shape) {
  // Each sequence rounds up once; a sequence without queries has no tile.
  return std::min(capacity.query_tokens.raw(),
                  CeilDiv(capacity.query_tokens, shape.query_tile) + capacity.num_seqs);
}

int64_t MaxSplits(const StepCapacity& capacity, const WorkShape& shape) {
  return std::max<int64_t>(1, CeilDiv(shape.KeysRead(capacity.KvTokens()), shape.split));
}

int64_t MaxPartials(const StepCapacity& capacity, const WorkShape& shape) {
  // Only a query tile that a worker boundary cuts leaves results to merge: at most one per split, or
  // one for each side of a cut.
  const int64_t cuts = shape.num_workers - 1;
  if (!shape.exact) return 2 * cuts;
  return Product(std::min(cuts, MaxQueryTiles(capacity, shape)), MaxSplits(capacity, shape));
}

void ThrowCapacity(const char* buffer, int64_t need, const std::string& need_factors,
                   int64_t capacity, const std::string& capacity_factors) {
  throw Error(ErrorCode::kCapacityExceeded, "{}: need {} = {}, capacity {} = {}", buffer, need,
              need_factors, capacity, capacity_factors);
}

}  // namespace quire
