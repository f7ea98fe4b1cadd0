#include "interop/cuda/export_launch.h"

#include <algorithm>

#include "attn/checks.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

void CheckCapacity(const char* buffer, const Sequences& plan, const StepCapacity& capacity) {
  Validate(capacity);
  RequireOnDevice(plan);
  Require(capacity.num_seqs >= 1, "{}: expected num_seqs >= 1, got {}", buffer, capacity.num_seqs);
  Require(capacity.page_size == plan.page_size, "{}: expected the plan's page_size {}, got {}",
          buffer, plan.page_size, capacity.page_size);
  Require(capacity.pool_pages == plan.pool_pages,
          "{}: expected the plan's pool of {} pages, got {}", buffer, plan.pool_pages,
          capacity.pool_pages);
  RequireInt32(buffer, "slots of the pool",
               capacity.page_size.TokensIn(capacity.pool_pages).raw() - 1);
}

int32_t CellsPerRow(const PageGrid& grid) {
  return static_cast<int32_t>(std::max<int64_t>(1, grid.CellsPerRow()));
}

// A grid has at most 2^31 - 1 CTAs.
int64_t CheckedCtas(const char* buffer, int64_t ctas) {
  RequireInt32(buffer, "CTAs", ctas);
  return ctas;
}

}  // namespace

FlatExport FlatExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                        const FlatIndices& out) {
  const char* buffer = "flat_token_indices";
  CheckCapacity(buffer, plan, capacity);
  const TokenCount sized = FlatIndexEntries(capacity);
  RequireInt32(buffer, "entries", sized.raw());
  RequireEntries(buffer, out.kv_indices.size(), sized.raw());
  RequireEntries("flat_token_indices.kv_indptr", out.kv_indptr.size(), IndptrEntries(capacity));
  FlatExport to{.seqs = plan,
                .offsets = step.offsets,
                .divider = DividerOf(plan.page_size),
                .num_seqs = capacity.num_seqs,
                .sized = sized.raw(),
                .indptr = out.kv_indptr.data(),
                .indices = out.kv_indices.data(),
                .grid = {.num_rows = capacity.num_seqs,
                         .longest_row = plan.page_size.PagesFor(TokenCount(step.bounds.kv_tokens)),
                         .bound = TokenRangePages(plan.page_size)}};
  to.cells = CellsPerRow(to.grid);
  return to;
}

TableExport TableExportOf(const Sequences& plan, const StepCapacity& capacity,
                          const BlockTable& out) {
  const char* buffer = "block_table";
  CheckCapacity(buffer, plan, capacity);
  const PageCount width = BlockTableWidth(out.rule, capacity);
  RequireInt32(buffer, "width", width.raw());
  RequireEntries(buffer, out.table.size(), BlockTableEntries(out.rule, capacity));
  RequireEntries("kv_lens", out.kv_lens.size(), capacity.num_seqs);
  TableExport to{.seqs = plan,
                 .divider = DividerOf(plan.page_size),
                 .num_seqs = capacity.num_seqs,
                 .width = static_cast<int32_t>(width.raw()),
                 .fill = out.fill,
                 .table = out.table.data(),
                 .kv_lens = out.kv_lens.data(),
                 .grid = {.num_rows = capacity.num_seqs, .longest_row = width}};
  to.cells = CellsPerRow(to.grid);
  return to;
}

DraftExport DraftExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                          const DraftRows& out) {
  const char* buffer = "draft_rows";
  const DraftShape& shape = out.shape;
  Validate(shape);
  CheckCapacity(buffer, plan, capacity);
  const TokenCount sized = DraftRowEntries(capacity, shape);
  RequireInt32(buffer, "entries of one step", sized.raw());
  RequireInt32(buffer, "branch rows", DraftIndptrEntries(capacity, shape));
  RequireEntries(buffer, out.kv_indices.size(), (sized * shape.steps).raw());
  RequireEntries("draft_rows.kv_indptr", out.kv_indptr.size(),
                 Product(DraftIndptrEntries(capacity, shape), shape.steps));
  RequireEntries("draft_rows.write_slots", out.write_slots.size(),
                 DraftSlotEntries(capacity, shape));
  const TokenCount longest = TokenCount(step.bounds.kv_tokens) + TokenCount(shape.steps);
  const TokenCount reach = longest + DraftReserve(plan.page_size, shape);
  Require(reach <= kMaxRowTokens, "{}: expected drafts up to position {}, got {}", buffer,
          kMaxRowTokens, reach);
  DraftExport to{.seqs = plan,
                 .offsets = step.offsets,
                 .packed = step.step.seqs,
                 .divider = DividerOf(plan.page_size),
                 .shape = shape,
                 .num_seqs = capacity.num_seqs,
                 .row_entries = sized.raw(),
                 .indptr = out.kv_indptr.data(),
                 .indices = out.kv_indices.data(),
                 .write_slots = out.write_slots.data(),
                 .grid = {.num_rows = Product(capacity.num_seqs, shape.branches) * shape.steps,
                          .longest_row = plan.page_size.PagesFor(longest),
                          .bound = TokenRangePages(plan.page_size)}};
  to.cells = CellsPerRow(to.grid);
  return to;
}

int64_t NumCtas(const FlatExport& to) {
  return CheckedCtas("flat_token_indices", Product(to.grid.num_rows, to.cells));
}
int64_t NumCtas(const TableExport& to) {
  return CheckedCtas("block_table", Product(to.grid.num_rows, to.cells));
}
int64_t NumCtas(const DraftExport& to) {
  return CheckedCtas("draft_rows", Product(to.grid.num_rows, to.cells));
}

}  // namespace quire::cuda
