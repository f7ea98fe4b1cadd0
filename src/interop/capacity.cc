#include "interop/capacity.h"

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

void Validate(const DraftShape& shape) {
  Require(shape.branches >= 1, "draft.branches: expected >= 1, got {}", shape.branches);
  Require(shape.steps >= 1, "draft.steps: expected >= 1, got {}", shape.steps);
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

}  // namespace quire
