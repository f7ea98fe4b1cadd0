#include "testing/invariants/export_checks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/maths.h"
#include "base/units.h"
#include "interop/export.h"
#include "testing/active_faults.h"
#include "testing/red_zone.h"

namespace quire::testing {
namespace {

// Kept for I4: what every table must expand to.
struct FlatForm {
  std::vector<int32_t> indptr;
  std::vector<int32_t> indices;
};

void CheckFlatIndices(const Trial& trial, const StepCapacity& capacity, FlatForm& flat) {
  RedZone<int32_t> indptr(Index(IndptrEntries(capacity)));
  RedZone<int32_t> indices(Index(FlatIndexEntries(capacity, ActiveFaults()).raw()));
  ExportFlatIndices(trial.batch.seqs, capacity,
                    {.kv_indptr = indptr.span(), .kv_indices = indices.span()}, trial.executor,
                    ActiveFaults());
  FlatForm expected{.indptr = {0}, .indices = {}};
  for (int64_t b = 0; b < capacity.num_seqs; ++b) {
    const int64_t kv_len = b < trial.num_rows() ? trial.KvLen(b) : 0;
    expected.indptr.push_back(expected.indptr.back() + ToInt32(kv_len));
    if (kv_len == 0) continue;
    const std::vector<int32_t>& slots = trial.batch.slots[Index(b)];
    expected.indices.insert(expected.indices.end(), slots.begin(), slots.begin() + kv_len);
  }
  flat.indptr = Values(indptr, 0, IndptrEntries(capacity));
  ASSERT_EQ(flat.indptr, expected.indptr);
  flat.indices = Values(indices, 0, flat.indptr.back());
  ASSERT_EQ(flat.indices, expected.indices);
  ExpectUnwritten(indices, flat.indptr.back());
  EXPECT_EQ(indptr.Damage() + indices.Damage(), "");
}

void CheckFlatPages(const Trial& trial, const StepCapacity& capacity, const FlatForm& flat) {
  RedZone<int32_t> indptr(Index(IndptrEntries(capacity)));
  RedZone<int32_t> pages(Index(FlatPageEntries(capacity).raw()));
  RedZone<int32_t> last_page_len(Index(capacity.num_seqs));
  ExportFlatPages(
      trial.batch.seqs, capacity,
      {.kv_indptr = indptr.span(), .kv_pages = pages.span(), .last_page_len = last_page_len.span()},
      trial.executor, ActiveFaults());
  std::vector<int32_t> expanded;
  const int64_t page = trial.page();
  for (size_t b = 0; b < Index(capacity.num_seqs); ++b) {
    const int32_t begin = indptr.span()[b], end = indptr.span()[b + 1];
    for (int32_t j = begin; j < end; ++j) {
      const int64_t keys = j + 1 < end ? page : last_page_len.span()[b];
      for (int64_t o = 0; o < keys; ++o) {
        expanded.push_back(ToInt32(pages.span()[Index(j)] * page + o));
      }
    }
    ASSERT_EQ(std::ssize(expanded), flat.indptr[b + 1]) << "row " << b;
  }
  ASSERT_EQ(expanded, flat.indices);
  ExpectUnwritten(pages, indptr.span().back());
  EXPECT_EQ(indptr.Damage() + pages.Damage() + last_page_len.Damage(), "");
}

// A table as a kernel reads it: rows of pages and lengths.
struct TableOut {
  RedZone<int32_t> table;
  RedZone<int32_t> kv_lens;
  int64_t width;
};

void CheckTable(const Trial& trial, const StepCapacity& capacity, TableOut& out, int32_t fill,
                const FlatForm& flat) {
  std::vector<int32_t> expanded;
  const int64_t page = trial.page();
  for (int64_t b = 0; b < capacity.num_seqs; ++b) {
    const std::vector<int32_t> row = Values(out.table, b * out.width, out.width);
    const int32_t kv_len = out.kv_lens.span()[Index(b)];
    ASSERT_EQ(row, trial.PaddedRow(b, out.width, fill)) << "row " << b;
    ASSERT_EQ(kv_len, flat.indptr[Index(b) + 1] - flat.indptr[Index(b)]) << "row " << b;
    for (int64_t p = 0; p < kv_len; ++p) {
      expanded.push_back(ToInt32(row[Index(p / page)] * page + p % page));
    }
  }
  ASSERT_EQ(expanded, flat.indices);
  EXPECT_EQ(out.table.Damage() + out.kv_lens.Damage(), "");
}

constexpr BlockTableRule kRules[] = {BlockTableRule::kCeil,          BlockTableRule::kFlashMlaEager,
                                     BlockTableRule::kFlashMlaGraph, BlockTableRule::kCutlassEager,
                                     BlockTableRule::kCutlassGraph,  BlockTableRule::kTrtllm};

bool IsAllowed(BlockTableRule rule, int64_t page) {
  switch (rule) {
    case BlockTableRule::kCeil:
      return true;
    case BlockTableRule::kFlashMlaEager:
    case BlockTableRule::kFlashMlaGraph:
      return page == 64;
    case BlockTableRule::kCutlassEager:
    case BlockTableRule::kCutlassGraph:
      return page == 128;
    case BlockTableRule::kTrtllm:
      return page == 32 || page == 64;
  }
  return false;
}

void CheckBlockTables(const Trial& trial, const StepCapacity& capacity, const FlatForm& flat) {
  for (BlockTableRule rule : kRules) {
    SCOPED_TRACE(BlockTableRuleName(rule));
    if (!IsAllowed(rule, trial.page())) {
      ExpectRefused("rule", ErrorCode::kInvalidArgument, [&] { BlockTableWidth(rule, capacity); });
      continue;
    }
    const int32_t fill = ToInt32(trial.random.Between(-1, 1));
    TableOut out{.table = RedZone<int32_t>(Index(BlockTableEntries(rule, capacity))),
                 .kv_lens = RedZone<int32_t>(Index(capacity.num_seqs)),
                 .width = BlockTableWidth(rule, capacity).raw()};
    ExportBlockTable(
        trial.batch.seqs, capacity,
        {.rule = rule, .fill = fill, .table = out.table.span(), .kv_lens = out.kv_lens.span()},
        trial.executor, ActiveFaults());
    CheckTable(trial, capacity, out, fill, flat);
    trial.facts.set(Index(kRuleCeil + static_cast<int>(rule)));
  }
}

void CheckUnifiedTable(const Trial& trial, const StepCapacity& capacity, const FlatForm& flat) {
  TableOut out{.table = RedZone<int32_t>(Index(UnifiedPageTableEntries(capacity))),
               .kv_lens = RedZone<int32_t>(Index(capacity.num_seqs)),
               .width = UnifiedPageTableWidth(capacity).raw()};
  ExportUnifiedPageTable(trial.batch.seqs, capacity,
                         {.table = out.table.span(), .kv_lens = out.kv_lens.span()}, trial.executor,
                         ActiveFaults());
  CheckTable(trial, capacity, out, 0, flat);
}

void CheckFlatRefusals(const Trial& trial) {
  const LongestRow longest = LongestOf(trial);
  const std::span<const SequenceStep> seqs(&longest.seq, 1);
  RedZone<int32_t> indptr(2), last_page_len(1);
  RedZone<int32_t> indices(Index(longest.seq.kv_len.raw()) - 1);
  const FlatIndices flat{.kv_indptr = indptr.span(), .kv_indices = indices.span()};
  ExpectRefused("a span shorter than its sizing function", ErrorCode::kInvalidArgument,
                [&] { ExportFlatIndices(seqs, longest.capacity, flat, trial.executor); });
  // A capacity of one token less sizes the very same span.
  StepCapacity less = longest.capacity;
  less.context -= TokenCount(1);
  ASSERT_EQ(FlatIndexEntries(less).raw(), std::ssize(indices.span()));
  ExpectRefused("one token too few", ErrorCode::kCapacityExceeded,
                [&] { ExportFlatIndices(seqs, less, flat, trial.executor); });
  EXPECT_TRUE(indptr.Untouched() && indices.Untouched());

  // As many tokens as fill one page less than the row has.
  const int64_t pages = CeilDiv(longest.seq.kv_len.raw(), trial.page());
  less.tree_nodes = TokenCount(0);
  less.context = TokenCount((pages - 1) * trial.page());
  RedZone<int32_t> flat_pages(Index(pages) - 1);
  ExpectRefused("one page too few", ErrorCode::kCapacityExceeded, [&] {
    ExportFlatPages(seqs, less,
                    {.kv_indptr = indptr.span(),
                     .kv_pages = flat_pages.span(),
                     .last_page_len = last_page_len.span()},
                    trial.executor);
  });
  EXPECT_TRUE(indptr.Untouched() && flat_pages.Untouched() && last_page_len.Untouched());
  trial.facts.set(kRefusedFlat);
}

// The most tokens for which the rule's table is one page too narrow for `pages`, if there are any.
std::optional<int64_t> TokensOfNarrowerTable(BlockTableRule rule, PageSize page_size,
                                             int64_t pages) {
  for (int64_t tokens = pages * page_size.raw(); tokens >= 0; --tokens) {
    if (BlockTableWidth(rule, page_size, TokenCount(tokens)) == PageCount(pages - 1)) return tokens;
    if (BlockTableWidth(rule, page_size, TokenCount(tokens)) < PageCount(pages - 1)) break;
  }
  return std::nullopt;
}

void CheckTableRefusals(const Trial& trial) {
  const LongestRow longest = LongestOf(trial);
  const std::span<const SequenceStep> seqs(&longest.seq, 1);
  const int64_t pages = CeilDiv(longest.seq.kv_len.raw(), trial.page());
  RedZone<int32_t> table(Index(pages) - 1), kv_lens(1);
  StepCapacity less = longest.capacity;
  less.tree_nodes = TokenCount(0);
  for (BlockTableRule rule : kRules) {
    if (!IsAllowed(rule, trial.page())) continue;
    const auto tokens = TokensOfNarrowerTable(rule, trial.config.page_size, pages);
    if (!tokens) continue;
    less.context = TokenCount(*tokens);
    ExpectRefused(BlockTableRuleName(rule), ErrorCode::kCapacityExceeded, [&] {
      ExportBlockTable(seqs, less, {.rule = rule, .table = table.span(), .kv_lens = kv_lens.span()},
                       trial.executor);
    });
    trial.facts.set(kRefusedTable);
  }
  const UnifiedPageTable unified{.table = table.span(), .kv_lens = kv_lens.span()};
  less.context = TokenCount((pages - 1) * trial.page());
  ExpectRefused("unified", ErrorCode::kCapacityExceeded,
                [&] { ExportUnifiedPageTable(seqs, less, unified, trial.executor); });
  ExpectRefused("a table of one page less", ErrorCode::kInvalidArgument,
                [&] { ExportUnifiedPageTable(seqs, longest.capacity, unified, trial.executor); });
  EXPECT_TRUE(table.Untouched() && kv_lens.Untouched());
}

}  // namespace

void CheckExports(const Trial& trial) {
  FlatForm flat;
  for (const StepCapacity& capacity : {trial.eager, trial.bucket}) {
    SCOPED_TRACE(ToString(capacity));
    CheckFlatIndices(trial, capacity, flat);
    QUIRE_RETURN_IF_FAILED();
    CheckFlatPages(trial, capacity, flat);
    QUIRE_RETURN_IF_FAILED();
    CheckBlockTables(trial, capacity, flat);
    CheckUnifiedTable(trial, capacity, flat);
    QUIRE_RETURN_IF_FAILED();
  }
}

void CheckExportRefusals(const Trial& trial) {
  CheckFlatRefusals(trial);
  CheckTableRefusals(trial);
}

}  // namespace quire::testing
