#include "testing/invariants/draft_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/format.h"
#include "base/maths.h"
#include "base/units.h"
#include "interop/export.h"
#include "testing/active_faults.h"
#include "testing/red_zone.h"

namespace quire::testing {
namespace {

struct DraftRowsOut {
  DraftRowsOut(const StepCapacity& capacity, const DraftShape& draft)
      : shape(draft),
        indptr_stride(DraftIndptrEntries(capacity, shape)),
        row_stride(DraftRowEntries(capacity, shape, ActiveFaults()).raw()),
        indptr(Index(indptr_stride * shape.steps)),
        rows(Index(row_stride * shape.steps)),
        write_slots(Index(DraftSlotEntries(capacity, shape))) {}
  DraftRows out() {
    return {.shape = shape,
            .kv_indptr = indptr.span(),
            .kv_indices = rows.span(),
            .write_slots = write_slots.span()};
  }
  // Row z of step i.
  std::span<const int32_t> Row(int64_t step, int64_t z) {
    const auto offsets = indptr.span().subspan(Index(step * indptr_stride + z), 2);
    return rows.span().subspan(Index(step * row_stride + offsets[0]),
                               Index(offsets[1] - offsets[0]));
  }
  int64_t WriteSlot(int64_t z, int64_t step) {
    return write_slots.span()[Index(z * shape.steps + step)];
  }

  DraftShape shape;
  int64_t indptr_stride, row_stride;
  RedZone<int32_t> indptr, rows;
  RedZone<int64_t> write_slots;
};

// The rows of one branch at all steps.
void CheckBranch(const Trial& trial, DraftRowsOut& draft, int64_t b, int64_t branch) {
  const int64_t z = b * draft.shape.branches + branch;
  const int64_t committed = trial.batch.committed[Index(b)];
  const std::vector<int32_t>& slots = trial.batch.slots[Index(b)];
  const int64_t start = trial.config.DraftStart(committed, branch);
  for (int64_t i = 0; i < draft.shape.steps; ++i) {
    const std::span<const int32_t> row = draft.Row(i, z);
    if (committed == 0) {
      ASSERT_TRUE(row.empty());
      ASSERT_EQ(draft.WriteSlot(z, i), 0) << "a padded row writes to the scratch page";
      continue;
    }
    ASSERT_EQ(std::ssize(row), committed + i + 1) << "keys of step " << i;
    ASSERT_TRUE(std::equal(row.begin(), row.begin() + committed, slots.begin()))
        << "the prefix at step " << i;
    ASSERT_EQ(draft.WriteSlot(z, i), slots[Index(start + i)]);
    for (int64_t d = 0; d <= i; ++d) {
      ASSERT_EQ(row[Index(committed + d)], draft.WriteSlot(z, d)) << "draft " << d;
    }
  }
}

// No slot is written by two drafts or belongs to a committed token.
void CheckDraftSlotsAreDisjoint(const Trial& trial, DraftRowsOut& draft) {
  const Slot end(trial.page() * trial.bucket.pool_pages.raw());
  std::vector<bool> taken(Index(end.raw()), false);
  for (int64_t b = 0; b < trial.num_rows(); ++b) {
    const std::vector<int32_t>& slots = trial.batch.slots[Index(b)];
    for (int64_t p = 0; p < trial.batch.committed[Index(b)]; ++p) {
      taken[Index(slots[Index(p)])] = true;
    }
  }
  for (int64_t b = 0; b < trial.num_rows(); ++b) {
    if (trial.batch.committed[Index(b)] == 0) continue;
    for (int64_t i = 0; i < int64_t{draft.shape.branches} * draft.shape.steps; ++i) {
      const int64_t slot = draft.WriteSlot(b * draft.shape.branches, i);
      ASSERT_FALSE(taken[Index(slot)]) << "row " << b << ", draft " << i << ", slot " << slot;
      taken[Index(slot)] = true;
    }
  }
}

void CheckDraftRows(const Trial& trial, const StepCapacity& capacity) {
  const DraftShape& shape = trial.config.draft;
  DraftRowsOut draft(capacity, shape);
  const std::vector<SequenceStep> steps = trial.CommittedSteps();
  ExportDraftRows(steps, capacity, draft.out(), trial.executor, ActiveFaults());
  for (int64_t b = 0; b < trial.num_rows(); ++b) {
    for (int64_t t = 0; t < shape.branches; ++t) {
      SCOPED_TRACE(fmt::format("row {}, branch {}", b, t));
      CheckBranch(trial, draft, b, t);
      QUIRE_RETURN_IF_FAILED();
    }
  }
  for (int64_t i = 0; i < shape.steps; ++i) {
    for (int64_t z = trial.num_rows() * shape.branches; z + 1 < draft.indptr_stride; ++z) {
      ASSERT_TRUE(draft.Row(i, z).empty()) << "padded row " << z;
    }
  }
  for (int64_t z = trial.num_rows() * shape.branches * shape.steps;
       z < DraftSlotEntries(capacity, shape); ++z) {
    ASSERT_EQ(draft.write_slots.span()[Index(z)], 0);
  }
  CheckDraftSlotsAreDisjoint(trial, draft);
  EXPECT_EQ(draft.indptr.Damage() + draft.rows.Damage() + draft.write_slots.Damage(), "");
}

// Full pages of the prefix once, the rest and the drafts from the branch's own pages.
void CheckDraftTables(const Trial& trial, const StepCapacity& capacity) {
  const DraftShape& shape = trial.config.draft;
  const int64_t prefix_width = DraftPrefixWidth(capacity).raw();
  const int64_t branch_width = DraftBranchWidth(capacity, shape).raw();
  const int64_t rows_per_step = int64_t{capacity.num_seqs} * shape.branches;
  RedZone<int32_t> prefix_table(Index(DraftPrefixEntries(capacity)));
  RedZone<int32_t> prefix_lens(Index(capacity.num_seqs));
  RedZone<int32_t> branch_table(Index(DraftBranchEntries(capacity, shape) * shape.steps));
  RedZone<int32_t> branch_lens(Index(rows_per_step * shape.steps));
  const std::vector<SequenceStep> steps = trial.CommittedSteps();
  ExportDraftTables(steps, capacity,
                    {.shape = shape,
                     .fill = -1,
                     .prefix_table = prefix_table.span(),
                     .prefix_lens = prefix_lens.span(),
                     .branch_table = branch_table.span(),
                     .branch_lens = branch_lens.span()},
                    trial.executor, ActiveFaults());
  const int64_t page = trial.page();
  for (int64_t b = 0; b < capacity.num_seqs; ++b) {
    const int64_t committed = b < trial.num_rows() ? trial.batch.committed[Index(b)] : 0;
    const int64_t full = committed / page, rest = committed % page;
    ASSERT_EQ(prefix_lens.span()[Index(b)], full * page);
    for (int64_t j = 0; j < prefix_width; ++j) {
      ASSERT_EQ(prefix_table.span()[Index(b * prefix_width + j)],
                j < full ? trial.batch.seqs[Index(b)].pages[Index(j)].raw() : -1);
    }
    for (int64_t i = 0; i < shape.steps; ++i) {
      for (int64_t t = 0; t < shape.branches; ++t) {
        const int64_t row = i * rows_per_step + b * shape.branches + t;
        const int64_t keys = branch_lens.span()[Index(row)];
        ASSERT_EQ(full * page + keys, committed == 0 ? 0 : committed + i + 1);
        const auto table = branch_table.span().subspan(Index(row * branch_width));
        const int64_t start = trial.config.DraftStart(committed, t);
        for (int64_t k = rest; k < keys; ++k) {
          ASSERT_EQ(table[Index(k / page)] * page + k % page,
                    trial.batch.slots[Index(b)][Index(start + k - rest)]);
        }
        for (int64_t j = CeilDiv(keys, page); j < branch_width; ++j) {
          ASSERT_EQ(table[Index(j)], -1);
        }
      }
    }
  }
  EXPECT_EQ(
      prefix_table.Damage() + prefix_lens.Damage() + branch_table.Damage() + branch_lens.Damage(),
      "");
}

}  // namespace

void CheckDraftExports(const Trial& trial, const StepCapacity& capacity) {
  CheckDraftRows(trial, capacity);
  QUIRE_RETURN_IF_FAILED();
  CheckDraftTables(trial, capacity);
}

void CheckDraftRefusals(const Trial& trial) {
  const LongestRow longest = LongestOf(trial);
  const std::span<const SequenceStep> seqs(&longest.seq, 1);
  const DraftShape& shape = trial.config.draft;
  StepCapacity less = longest.capacity;
  less.context -= TokenCount(1);
  RedZone<int32_t> indptr(Index(DraftIndptrEntries(less, shape) * shape.steps));
  RedZone<int32_t> rows(Index((DraftRowEntries(less, shape) * shape.steps).raw()));
  RedZone<int64_t> slots(Index(DraftSlotEntries(less, shape)));
  const auto export_rows = [&](const StepCapacity& capacity) {
    ExportDraftRows(seqs, capacity,
                    {.shape = shape,
                     .kv_indptr = indptr.span(),
                     .kv_indices = rows.span(),
                     .write_slots = slots.span()},
                    trial.executor);
  };
  ExpectRefused("one committed token too many", ErrorCode::kCapacityExceeded,
                [&] { export_rows(less); });
  ExpectRefused("rows of one token less", ErrorCode::kInvalidArgument,
                [&] { export_rows(longest.capacity); });
  EXPECT_TRUE(indptr.Untouched() && rows.Untouched() && slots.Untouched());
  trial.facts.set(kRefusedDrafts);

  const int64_t full_pages = longest.seq.committed().raw() / trial.page();
  if (full_pages == 0) return;
  less.context = TokenCount(full_pages * trial.page() - 1);
  const int64_t branch_rows = int64_t{shape.branches} * shape.steps;
  RedZone<int32_t> prefix_table(Index(full_pages) - 1), prefix_lens(1);
  RedZone<int32_t> branch_table(Index(DraftBranchEntries(less, shape) * shape.steps));
  RedZone<int32_t> branch_lens(Index(branch_rows));
  ExpectRefused("one full page too many", ErrorCode::kCapacityExceeded, [&] {
    ExportDraftTables(seqs, less,
                      {.shape = shape,
                       .prefix_table = prefix_table.span(),
                       .prefix_lens = prefix_lens.span(),
                       .branch_table = branch_table.span(),
                       .branch_lens = branch_lens.span()},
                      trial.executor);
  });
  EXPECT_TRUE(prefix_table.Untouched() && prefix_lens.Untouched() && branch_table.Untouched() &&
              branch_lens.Untouched());
}

}  // namespace quire::testing
