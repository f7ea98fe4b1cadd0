#include "interop/export_checks.h"

#include "attn/checks.h"

namespace quire {

void RequireOutputs(const FlatIndices& out, const StepCapacity& capacity, Faults faults) {
  RequireEntries("flat_token_indices", out.kv_indices.size(),
                 FlatIndexEntries(capacity, faults).raw());
  RequireEntries("flat_token_indices.kv_indptr", out.kv_indptr.size(), IndptrEntries(capacity));
}

void RequireOutputs(const FlatPages& out, const StepCapacity& capacity) {
  RequireEntries("flat_page_indices", out.kv_pages.size(), FlatPageEntries(capacity).raw());
  RequireEntries("flat_page_indices.kv_indptr", out.kv_indptr.size(), IndptrEntries(capacity));
  RequireEntries("flat_page_indices.last_page_len", out.last_page_len.size(), capacity.num_seqs);
}

void RequireOutputs(const DraftRows& out, const StepCapacity& capacity, Faults faults) {
  const DraftShape& shape = out.shape;
  RequireEntries("draft_rows", out.kv_indices.size(),
                 (DraftRowEntries(capacity, shape, faults) * shape.steps).raw());
  RequireEntries("draft_rows.kv_indptr", out.kv_indptr.size(),
                 Product(DraftIndptrEntries(capacity, shape), shape.steps));
  RequireEntries("draft_rows.write_slots", out.write_slots.size(),
                 DraftSlotEntries(capacity, shape));
}

void RequireOutputs(const DraftTables& out, const StepCapacity& capacity) {
  const DraftShape& shape = out.shape;
  RequireEntries("draft_prefix_table", out.prefix_table.size(), DraftPrefixEntries(capacity));
  RequireEntries("draft_prefix_lens", out.prefix_lens.size(), capacity.num_seqs);
  RequireEntries("draft_branch_table", out.branch_table.size(),
                 Product(DraftBranchEntries(capacity, shape), shape.steps));
  RequireEntries("draft_branch_lens", out.branch_lens.size(), DraftSlotEntries(capacity, shape));
}

SequenceTable TableOf(const BlockTable& out, const StepCapacity& capacity) {
  return {.name = "block_table",
          .width = BlockTableWidth(out.rule, capacity),
          .fill = out.fill,
          .table = out.table,
          .kv_lens = out.kv_lens};
}

SequenceTable TableOf(const UnifiedPageTable& out, const StepCapacity& capacity) {
  return {.name = "unified_page_table",
          .width = UnifiedPageTableWidth(capacity),
          .fill = kScratchPage.raw(),
          .table = out.table,
          .kv_lens = out.kv_lens};
}

void RequireOutputs(const SequenceTable& out, const StepCapacity& capacity) {
  RequireEntries(out.name, out.table.size(), (out.width * capacity.num_seqs).raw());
  RequireEntries("kv_lens", out.kv_lens.size(), capacity.num_seqs);
}

}  // namespace quire
