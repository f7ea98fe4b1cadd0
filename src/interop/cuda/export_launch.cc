#include "interop/cuda/export_launch.h"

#include <algorithm>

#include "attn/checks.h"
#include "base/error.h"
#include "base/maths.h"
#include "interop/export_checks.h"

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

// The kernel's half of a table whose outputs are checked.
TableExport TableOf(const Sequences& plan, const StepCapacity& capacity, const SequenceTable& out,
                    TableRows rows) {
  RequireInt32(out.name, "width", out.width.raw());
  TableExport to{.seqs = plan,
                 .rows = rows,
                 .divider = DividerOf(plan.page_size),
                 .num_seqs = capacity.num_seqs,
                 .width = static_cast<int32_t>(out.width.raw()),
                 .fill = out.fill,
                 .table = out.table.data(),
                 .lens = out.kv_lens.data(),
                 .grid = {.num_rows = capacity.num_seqs, .longest_row = out.width}};
  to.cells = CellsPerRow(to.grid);
  CheckedCtas(out.name, NumCtas(to));
  return to;
}

TableExport SequenceTableOf(const Sequences& plan, const StepCapacity& capacity,
                            const SequenceTable& out) {
  CheckCapacity(out.name, plan, capacity);
  RequireOutputs(out, capacity);
  return TableOf(plan, capacity, out, TableRows::kSequences);
}

// Drafts of the longest row of the plan end at positions that fit int32.
void CheckReach(const char* buffer, const Sequences& plan, const StepView& step,
                const DraftShape& shape) {
  const TokenCount reach = TokenCount(step.bounds.kv_tokens) + TokenCount(shape.steps) +
                           DraftReserve(plan.page_size, shape);
  Require(reach <= kMaxRowTokens, "{}: expected drafts up to position {}, got {}", buffer,
          kMaxRowTokens, reach);
}

}  // namespace

FlatExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                    const FlatIndices& out) {
  const char* buffer = "flat_token_indices";
  CheckCapacity(buffer, plan, capacity);
  const TokenCount sized = FlatIndexEntries(capacity);
  RequireInt32(buffer, "entries", sized.raw());
  RequireOutputs(out, capacity);
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

FlatPagesExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                         const FlatPages& out) {
  const char* buffer = "flat_page_indices";
  CheckCapacity(buffer, plan, capacity);
  const PageCount sized = FlatPageEntries(capacity);
  RequireInt32(buffer, "entries", sized.raw());
  RequireOutputs(out, capacity);
  const TokenCount longest(step.bounds.kv_tokens);
  FlatPagesExport to{
      .seqs = plan,
      .divider = DividerOf(plan.page_size),
      .num_seqs = capacity.num_seqs,
      .sized = sized.raw(),
      .indptr = out.kv_indptr.data(),
      .pages = out.kv_pages.data(),
      .last_page_len = out.last_page_len.data(),
      .grid = {.num_rows = capacity.num_seqs, .longest_row = plan.page_size.PagesFor(longest)}};
  to.cells = CellsPerRow(to.grid);
  return to;
}

TableExport ExportOf(const Sequences& plan, const StepView&, const StepCapacity& capacity,
                     const BlockTable& out) {
  return SequenceTableOf(plan, capacity, ::quire::TableOf(out, capacity));
}

TableExport ExportOf(const Sequences& plan, const StepView&, const StepCapacity& capacity,
                     const UnifiedPageTable& out) {
  return SequenceTableOf(plan, capacity, ::quire::TableOf(out, capacity));
}

DraftExport ExportOf(const Sequences& plan, const StepView& step, const StepCapacity& capacity,
                     const DraftRows& out) {
  const char* buffer = "draft_rows";
  const DraftShape& shape = out.shape;
  Validate(shape);
  CheckCapacity(buffer, plan, capacity);
  const TokenCount sized = DraftRowEntries(capacity, shape);
  RequireInt32(buffer, "entries of one step", sized.raw());
  RequireInt32(buffer, "branch rows", DraftIndptrEntries(capacity, shape));
  RequireOutputs(out, capacity);
  CheckReach(buffer, plan, step, shape);
  const TokenCount longest = TokenCount(step.bounds.kv_tokens) + TokenCount(shape.steps);
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

DraftTablesExport ExportOf(const Sequences& plan, const StepView& step,
                           const StepCapacity& capacity, const DraftTables& out) {
  const char* buffer = "draft_prefix_table";
  const DraftShape& shape = out.shape;
  Validate(shape);
  CheckCapacity(buffer, plan, capacity);
  RequireInt32("draft_branch_table", "entries",
               Product(DraftBranchEntries(capacity, shape), shape.steps));
  RequireOutputs(out, capacity);
  CheckReach(buffer, plan, step, shape);
  const SequenceTable prefix{.name = buffer,
                             .width = DraftPrefixWidth(capacity),
                             .fill = out.fill,
                             .table = out.prefix_table,
                             .kv_lens = out.prefix_lens};
  DraftTablesExport to{
      .prefix = TableOf(plan, capacity, prefix, TableRows::kPrefixes),
      .packed = step.step.seqs,
      .shape = shape,
      .width = static_cast<int32_t>(DraftBranchWidth(capacity, shape).raw()),
      .num_entries = static_cast<int32_t>(DraftBranchEntries(capacity, shape) * shape.steps),
      .table = out.branch_table.data(),
      .lens = out.branch_lens.data()};
  to.prefix_ctas = static_cast<int32_t>(NumCtas(to.prefix));
  return to;
}

int64_t NumCtas(const FlatExport& to) {
  return CheckedCtas("flat_token_indices", Product(to.grid.num_rows, to.cells));
}
int64_t NumCtas(const FlatPagesExport& to) {
  return CheckedCtas("flat_page_indices", Product(to.grid.num_rows, to.cells));
}
int64_t NumCtas(const TableExport& to) {
  return Product(to.grid.num_rows, to.cells);  // each table has a name of its own: TableOf checks
}
int64_t NumCtas(const DraftExport& to) {
  return CheckedCtas("draft_rows", Product(to.grid.num_rows, to.cells));
}
int64_t NumCtas(const DraftTablesExport& to) {
  const int64_t branches = CeilDiv(to.num_entries, kBranchEntriesPerCta);
  return CheckedCtas("draft_branch_table", to.prefix_ctas + branches);
}

}  // namespace quire::cuda
