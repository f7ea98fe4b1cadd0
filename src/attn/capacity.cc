#include "attn/capacity.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "attn/checks.h"
#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

void RequirePageSize(BlockTableRule rule, PageSize page_size,
                     std::initializer_list<int32_t> allowed) {
  Require(std::find(allowed.begin(), allowed.end(), page_size.raw()) != allowed.end(),
          "block table ({}): page_size: expected {}, got {}", BlockTableRuleName(rule),
          fmt::join(allowed, " or "), page_size);
}

}  // namespace

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
}

void Validate(const DraftShape& shape) {
  Require(shape.branches >= 1, "draft.branches: expected >= 1, got {}", shape.branches);
  Require(shape.steps >= 1, "draft.steps: expected >= 1, got {}", shape.steps);
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
  return std::max<int64_t>(1, CeilDiv(capacity.KvTokens(), shape.split));
}

int64_t MaxPartials(const StepCapacity& capacity, const WorkShape& shape) {
  // Only a query tile that a worker boundary cuts leaves results to merge: at most one per split, or
  // one for each side of a cut.
  const int64_t cuts = shape.num_workers - 1;
  if (!shape.exact) return 2 * cuts;
  return Product(std::min(cuts, MaxQueryTiles(capacity, shape)), MaxSplits(capacity, shape));
}

int64_t IndptrEntries(const StepCapacity& capacity) { return int64_t{capacity.num_seqs} + 1; }

TokenCount FlatIndexEntries(const StepCapacity& capacity, Faults faults) {
  if (faults.Has(Fault::kFlatIndexSizedInPages)) {
    return TokenCount(PageTableWidth(capacity).raw()) * capacity.num_seqs;
  }
  return capacity.KvTokens() * capacity.num_seqs;
}

PageCount FlatPageEntries(const StepCapacity& capacity) {
  return PageTableWidth(capacity) * capacity.num_seqs;
}

const char* BlockTableRuleName(BlockTableRule rule) {
  switch (rule) {
    case BlockTableRule::kCeil:
      return "ceil";
    case BlockTableRule::kFlashMlaEager:
      return "flashmla eager";
    case BlockTableRule::kFlashMlaGraph:
      return "flashmla graph";
    case BlockTableRule::kCutlassEager:
      return "cutlass eager";
    case BlockTableRule::kCutlassGraph:
      return "cutlass graph";
    case BlockTableRule::kTrtllm:
      return "trtllm";
  }
  return "?";
}

PageCount BlockTableWidth(BlockTableRule rule, PageSize page_size, TokenCount tokens) {
  Require(tokens >= TokenCount(0), "block table ({}): expected tokens >= 0, got {}",
          BlockTableRuleName(rule), tokens);
  switch (rule) {
    case BlockTableRule::kCeil:
      return page_size.PagesFor(tokens);
    case BlockTableRule::kFlashMlaEager:
      RequirePageSize(rule, page_size, {64});
      return page_size.PagesFor(tokens);
    case BlockTableRule::kFlashMlaGraph:
      RequirePageSize(rule, page_size, {64});
      return page_size.FullPages(tokens + page_size.tokens());
    case BlockTableRule::kCutlassEager:
      RequirePageSize(rule, page_size, {128});
      return page_size.PagesFor(tokens);
    case BlockTableRule::kCutlassGraph:
      RequirePageSize(rule, page_size, {128});
      return page_size.FullPages(tokens + page_size.tokens());
    case BlockTableRule::kTrtllm: {
      RequirePageSize(rule, page_size, {32, 64});
      // The kernel reads 128 tokens at a time, its table fill works in pieces of 4096 tokens.
      const int64_t pages = std::lcm(128 / page_size.raw(), 4096 / page_size.raw());
      return PageCount(RoundUp(page_size.PagesFor(tokens).raw(), pages));
    }
  }
  throw Error(ErrorCode::kInvalidArgument, "block table: no rule {}", static_cast<int>(rule));
}

PageCount BlockTableWidth(BlockTableRule rule, const StepCapacity& capacity) {
  return BlockTableWidth(rule, capacity.page_size, capacity.KvTokens());
}

int64_t BlockTableEntries(BlockTableRule rule, const StepCapacity& capacity) {
  return (BlockTableWidth(rule, capacity) * capacity.num_seqs).raw();
}

PageCount UnifiedPageTableWidth(const StepCapacity& capacity) { return PageTableWidth(capacity); }

int64_t UnifiedPageTableEntries(const StepCapacity& capacity) {
  return (UnifiedPageTableWidth(capacity) * capacity.num_seqs).raw();
}

TokenCount DraftRowEntries(const StepCapacity& capacity, const DraftShape& shape, Faults faults) {
  const TokenCount per_branch = capacity.context + TokenCount(shape.steps);
  if (faults.Has(Fault::kDraftRowsWithoutBranches)) return per_branch * capacity.num_seqs;
  return per_branch * capacity.num_seqs * shape.branches;
}

int64_t DraftIndptrEntries(const StepCapacity& capacity, const DraftShape& shape) {
  return Product(capacity.num_seqs, shape.branches) + 1;
}

int64_t DraftSlotEntries(const StepCapacity& capacity, const DraftShape& shape) {
  return Product(Product(capacity.num_seqs, shape.branches), shape.steps);
}

TokenCount DraftReserve(PageSize page_size, const DraftShape& shape) {
  // The worst case is a prefix that fills all but one token of its last page.
  const TokenCount steps(shape.steps);
  const PageCount branch_pages = page_size.PagesFor(page_size.tokens() - TokenCount(1) + steps);
  return page_size.TokensIn(branch_pages * (shape.branches - 1)) + steps;
}

PageCount DraftPrefixWidth(const StepCapacity& capacity) {
  return capacity.page_size.FullPages(capacity.context);
}

int64_t DraftPrefixEntries(const StepCapacity& capacity) {
  return (DraftPrefixWidth(capacity) * capacity.num_seqs).raw();
}

PageCount DraftBranchWidth(const StepCapacity& capacity, const DraftShape& shape) {
  // A branch begins anywhere in its first page.
  const PageSize page_size = capacity.page_size;
  return page_size.PagesFor(page_size.tokens() - TokenCount(1) + TokenCount(shape.steps));
}

int64_t DraftBranchEntries(const StepCapacity& capacity, const DraftShape& shape) {
  return Product(DraftBranchWidth(capacity, shape).raw(),
                 Product(capacity.num_seqs, shape.branches));
}

void ThrowCapacity(const char* buffer, int64_t need, const std::string& need_factors,
                   int64_t capacity, const std::string& capacity_factors) {
  throw Error(ErrorCode::kCapacityExceeded, "{}: need {} = {}, capacity {} = {}", buffer, need,
              need_factors, capacity, capacity_factors);
}

}  // namespace quire
