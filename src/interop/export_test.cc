#include "interop/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "base/error.h"
#include "device/thread_pool.h"
#include "testing/active_faults.h"
#include "testing/error_message.h"
#include "testing/export_kernels.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::AttentionOutput;
using testing::BlockTableAttention;
using testing::CausalKeys;
using testing::Difference;
using testing::ErrorMessage;
using testing::FlatIndexAttention;
using testing::KeyMask;
using testing::KeyName;
using testing::kNamedTolerance;
using testing::NamedAttention;
using testing::RedZone;
using testing::RowLengths;
using testing::ScatteredBatch;

constexpr int kPageSizes[] = {1, 2, 3, 16, 61, 64, 128, 256};

template <class T>
std::vector<T> Slice(std::span<T> entries, int64_t begin, int64_t count) {
  const auto part = entries.subspan(Index(begin), Index(count));
  return {part.begin(), part.end()};
}

std::vector<int32_t> QueryOffsets(std::span<const SequenceStep> seqs) {
  std::vector<int32_t> offsets = {0};
  for (const SequenceStep& seq : seqs) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(seq.q_len.raw()));
  }
  return offsets;
}

// Outputs of every exporter, sized for a capacity by the sizing functions and nothing else.
struct FlatBuffers {
  explicit FlatBuffers(const StepCapacity& capacity)
      : kv_indptr(Index(IndptrEntries(capacity))),
        kv_indices(Index(FlatIndexEntries(capacity, ActiveFaults()).raw())) {}
  FlatIndices out() { return {.kv_indptr = kv_indptr.span(), .kv_indices = kv_indices.span()}; }
  bool Untouched() const { return kv_indptr.Untouched() && kv_indices.Untouched(); }

  RedZone<int32_t> kv_indptr;
  RedZone<int32_t> kv_indices;
};

struct TableBuffers {
  TableBuffers(BlockTableRule rule_in, const StepCapacity& capacity)
      : rule(rule_in),
        table(Index(BlockTableEntries(rule, capacity))),
        kv_lens(Index(capacity.num_seqs)) {}
  BlockTable out(int32_t fill = 0) {
    return {.rule = rule, .fill = fill, .table = table.span(), .kv_lens = kv_lens.span()};
  }
  bool Untouched() const { return table.Untouched() && kv_lens.Untouched(); }

  BlockTableRule rule;
  RedZone<int32_t> table;
  RedZone<int32_t> kv_lens;
};

struct DraftRowBuffers {
  DraftRowBuffers(const DraftShape& shape_in, const StepCapacity& capacity)
      : shape(shape_in),
        row_entries(DraftRowEntries(capacity, shape, ActiveFaults()).raw()),
        indptr_entries(DraftIndptrEntries(capacity, shape)),
        kv_indptr(Index(indptr_entries * shape.steps)),
        kv_indices(Index(row_entries * shape.steps)),
        write_slots(Index(DraftSlotEntries(capacity, shape))) {}
  DraftRows out() {
    return {.shape = shape,
            .kv_indptr = kv_indptr.span(),
            .kv_indices = kv_indices.span(),
            .write_slots = write_slots.span()};
  }
  std::vector<int32_t> Indptr(int64_t step) {
    return Slice(kv_indptr.span(), step * indptr_entries, indptr_entries);
  }
  std::vector<int32_t> Row(int64_t step) {
    return Slice(kv_indices.span(), step * row_entries, row_entries);
  }
  bool Untouched() const {
    return kv_indptr.Untouched() && kv_indices.Untouched() && write_slots.Untouched();
  }

  DraftShape shape;
  int64_t row_entries;
  int64_t indptr_entries;
  RedZone<int32_t> kv_indptr;
  RedZone<int32_t> kv_indices;
  RedZone<int64_t> write_slots;
};

struct DraftTableBuffers {
  DraftTableBuffers(const DraftShape& shape_in, const StepCapacity& capacity)
      : shape(shape_in),
        prefix_width(DraftPrefixWidth(capacity).raw()),
        branch_width(DraftBranchWidth(capacity, shape).raw()),
        rows(int64_t{capacity.num_seqs} * shape.branches),
        prefix_table(Index(DraftPrefixEntries(capacity))),
        prefix_lens(Index(capacity.num_seqs)),
        branch_table(Index(DraftBranchEntries(capacity, shape) * shape.steps)),
        branch_lens(Index(rows * shape.steps)) {}
  DraftTables out(int32_t fill = 0) {
    return {.shape = shape,
            .fill = fill,
            .prefix_table = prefix_table.span(),
            .prefix_lens = prefix_lens.span(),
            .branch_table = branch_table.span(),
            .branch_lens = branch_lens.span()};
  }
  bool Untouched() const {
    return prefix_table.Untouched() && prefix_lens.Untouched() && branch_table.Untouched() &&
           branch_lens.Untouched();
  }

  DraftShape shape;
  int64_t prefix_width, branch_width, rows;
  RedZone<int32_t> prefix_table, prefix_lens, branch_table, branch_lens;
};

// Lengths around the edges of a page, an empty row among them, one or two queries each.
std::vector<RowLengths> EdgeRows(int page_size) {
  return {{.q_len = 1, .kv_len = 1},
          {.q_len = 2, .kv_len = std::max(page_size - 1, 2)},
          {.q_len = 1, .kv_len = 0},
          {.q_len = 1, .kv_len = page_size},
          {.q_len = 2, .kv_len = page_size + 1},
          {.q_len = 1, .kv_len = 3 * page_size + 2}};
}

// The allocation of the worked example: page size 4, lengths 8 and 5, pages 1, 2 and 3, 4.
class WorkedExample : public ::testing::Test {
 protected:
  static constexpr PageId kPages[] = {PageId(1), PageId(2), PageId(3), PageId(4)};
  const std::vector<SequenceStep> seqs_ = {
      {.q_len = TokenCount(1),
       .kv_len = TokenCount(8),
       .pages = std::span(kPages).first(2),
       .tree_parents = {}},
      {.q_len = TokenCount(1),
       .kv_len = TokenCount(5),
       .pages = std::span(kPages).last(2),
       .tree_parents = {}},
  };
  const StepCapacity capacity_{.num_seqs = 2,
                               .query_tokens = TokenCount(2),
                               .context = TokenCount(12),
                               .page_size = PageSize(4),
                               .pool_pages = PageCount(17)};
  SerialExecutor serial_;
};

// ---- Flat forms ----

TEST_F(WorkedExample, FlatIndicesListTheSlotOfEveryToken) {
  FlatBuffers flat(capacity_);
  ExportFlatIndices(seqs_, capacity_, flat.out(), serial_, ActiveFaults());
  EXPECT_EQ(flat.kv_indptr.values(), (std::vector{0, 8, 13}));
  EXPECT_EQ(Slice(flat.kv_indices.span(), 0, 13),
            (std::vector{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(flat.kv_indices.Damage(), "");
}

TEST_F(WorkedExample, BlockTableListsThePagesAndThenTheFillValue) {
  TableBuffers table(BlockTableRule::kCeil, capacity_);
  ExportBlockTable(seqs_, capacity_, table.out(/*fill=*/-1), serial_, ActiveFaults());
  EXPECT_EQ(table.table.values(), (std::vector{1, 2, -1, 3, 4, -1}));
  EXPECT_EQ(table.kv_lens.values(), (std::vector{8, 5}));
}

TEST_F(WorkedExample, FlatPagesListThePagesAndTheLastPagesLength) {
  RedZone<int32_t> kv_indptr(Index(IndptrEntries(capacity_)));
  RedZone<int32_t> last_page_len(Index(capacity_.num_seqs));
  RedZone<int32_t> kv_pages(Index(FlatPageEntries(capacity_).raw()));
  ExportFlatPages(seqs_, capacity_,
                  {.kv_indptr = kv_indptr.span(),
                   .kv_pages = kv_pages.span(),
                   .last_page_len = last_page_len.span()},
                  serial_, ActiveFaults());
  EXPECT_EQ(kv_indptr.values(), (std::vector{0, 2, 4}));
  EXPECT_EQ(Slice(kv_pages.span(), 0, 4), (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(last_page_len.values(), (std::vector{4, 1}));
}

TEST(ExportTest, FlatIndicesExpandTheBlockTableAtEveryPageSize) {
  SerialExecutor serial;
  for (int raw : kPageSizes) {
    const PageSize page_size(raw);
    const ScatteredBatch batch(page_size, EdgeRows(raw), 5);
    FlatBuffers flat(batch.capacity);
    TableBuffers table(BlockTableRule::kCeil, batch.capacity);
    ExportFlatIndices(batch.seqs, batch.capacity, flat.out(), serial, ActiveFaults());
    ExportBlockTable(batch.seqs, batch.capacity, table.out(-1), serial, ActiveFaults());
    const int64_t width = BlockTableWidth(BlockTableRule::kCeil, batch.capacity).raw();
    std::vector<int32_t> expanded;
    for (int64_t b = 0; b < batch.capacity.num_seqs; ++b) {
      for (int32_t p = 0; p < table.kv_lens.span()[Index(b)]; ++p) {
        expanded.push_back(table.table.span()[Index(b * width + p / raw)] * raw + p % raw);
      }
      EXPECT_EQ(flat.kv_indptr.span()[Index(b) + 1], static_cast<int32_t>(expanded.size()));
    }
    EXPECT_EQ(Slice(flat.kv_indices.span(), 0, static_cast<int64_t>(expanded.size())), expanded)
        << "page size " << raw;
  }
}

TEST(ExportTest, AttentionOverEveryFormEqualsAttentionOverPositions) {
  SerialExecutor serial;
  for (int raw : kPageSizes) {
    const PageSize page_size(raw);
    const ScatteredBatch batch(page_size, EdgeRows(raw), 11);
    const std::vector<int32_t> qo_indptr = QueryOffsets(batch.seqs);
    NamedAttention attention(batch, qo_indptr.back(), 2);
    attention.StoreAll(batch);
    const AttentionOutput expected = attention.Expected(CausalKeys(batch.seqs));

    FlatBuffers flat(batch.capacity);
    ExportFlatIndices(batch.seqs, batch.capacity, flat.out(), serial, ActiveFaults());
    const AttentionOutput from_flat =
        FlatIndexAttention(attention.inputs(), qo_indptr, flat.kv_indptr.span(),
                           flat.kv_indices.span(), KeyMask::kCausal);
    EXPECT_LE(Difference(from_flat, expected), kNamedTolerance) << "flat, page size " << raw;

    for (BlockTableRule rule :
         {BlockTableRule::kCeil, BlockTableRule::kFlashMlaEager, BlockTableRule::kFlashMlaGraph,
          BlockTableRule::kCutlassEager, BlockTableRule::kCutlassGraph, BlockTableRule::kTrtllm}) {
      const bool takes_64 =
          rule != BlockTableRule::kCutlassEager && rule != BlockTableRule::kCutlassGraph;
      if (rule != BlockTableRule::kCeil && raw != (takes_64 ? 64 : 128)) continue;
      TableBuffers table(rule, batch.capacity);
      ExportBlockTable(batch.seqs, batch.capacity, table.out(-1), serial, ActiveFaults());
      const AttentionOutput from_table =
          BlockTableAttention(attention.inputs(), qo_indptr,
                              {.table = table.table.span(),
                               .kv_lens = table.kv_lens.span(),
                               .width = BlockTableWidth(rule, batch.capacity).raw(),
                               .page_size = page_size},
                              KeyMask::kCausal);
      EXPECT_LE(Difference(from_table, expected), kNamedTolerance)
          << BlockTableRuleName(rule) << ", page size " << raw;
      EXPECT_EQ(table.table.Damage(), "");
    }

    RedZone<int32_t> unified(Index(UnifiedPageTableEntries(batch.capacity)));
    RedZone<int32_t> kv_lens(Index(batch.capacity.num_seqs));
    ExportUnifiedPageTable(batch.seqs, batch.capacity,
                           {.table = unified.span(), .kv_lens = kv_lens.span()}, serial,
                           ActiveFaults());
    const AttentionOutput from_unified =
        BlockTableAttention(attention.inputs(), qo_indptr,
                            {.table = unified.span(),
                             .kv_lens = kv_lens.span(),
                             .width = UnifiedPageTableWidth(batch.capacity).raw(),
                             .page_size = page_size},
                            KeyMask::kCausal);
    EXPECT_LE(Difference(from_unified, expected), kNamedTolerance) << "unified, page size " << raw;
  }
}

TEST(ExportTest, FewerSequencesThanTheBucketArePadded) {
  const RowLengths rows[] = {{.kv_len = 5}};
  ScatteredBatch batch(PageSize(4), rows, 3);
  batch.capacity.num_seqs = 3;
  SerialExecutor serial;
  FlatBuffers flat(batch.capacity);
  ExportFlatIndices(batch.seqs, batch.capacity, flat.out(), serial, ActiveFaults());
  EXPECT_EQ(flat.kv_indptr.values(), (std::vector{0, 5, 5, 5}));

  TableBuffers table(BlockTableRule::kCeil, batch.capacity);
  ExportBlockTable(batch.seqs, batch.capacity, table.out(), serial, ActiveFaults());
  EXPECT_EQ(table.kv_lens.values(), (std::vector{5, 0, 0}));
  EXPECT_EQ(Slice(table.table.span(), 2, 4), (std::vector{0, 0, 0, 0}));

  const RowLengths draft_rows[] = {{.kv_len = 5, .room = 8}};
  ScatteredBatch with_room(PageSize(4), draft_rows, 3);
  with_room.capacity.num_seqs = 3;
  DraftRowBuffers draft({.branches = 2, .steps = 1}, with_room.capacity);
  ExportDraftRows(with_room.seqs, with_room.capacity, draft.out(), serial, ActiveFaults());
  EXPECT_EQ(draft.Indptr(0), (std::vector{0, 6, 12, 12, 12, 12, 12}));
  EXPECT_EQ(Slice(draft.write_slots.span(), 2, 4), (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST(ExportTest, ParallelEqualsSerialBitForBit) {
  ThreadPool pool(4);
  SerialExecutor serial;
  for (int raw : {1, 3, 64}) {
    const RowLengths rows[] = {{.kv_len = 200000, .room = 4096},
                               {.kv_len = 0},
                               {.kv_len = 4097, .room = 4096},
                               {.kv_len = 1, .room = 4096}};
    const ScatteredBatch batch(PageSize(raw), rows, 17);
    const StepCapacity& capacity = batch.capacity;
    const DraftShape shape{.branches = 3, .steps = 2};
    FlatBuffers flat[] = {FlatBuffers(capacity), FlatBuffers(capacity)};
    TableBuffers table[] = {TableBuffers(BlockTableRule::kCeil, capacity),
                            TableBuffers(BlockTableRule::kCeil, capacity)};
    DraftRowBuffers draft[] = {DraftRowBuffers(shape, capacity), DraftRowBuffers(shape, capacity)};
    Executor* executors[] = {&serial, &pool};
    for (int i : {0, 1}) {
      ExportFlatIndices(batch.seqs, capacity, flat[i].out(), *executors[i], ActiveFaults());
      ExportBlockTable(batch.seqs, capacity, table[i].out(), *executors[i], ActiveFaults());
      ExportDraftRows(batch.seqs, capacity, draft[i].out(), *executors[i], ActiveFaults());
    }
    EXPECT_EQ(flat[0].kv_indptr.values(), flat[1].kv_indptr.values());
    EXPECT_EQ(flat[0].kv_indices.values(), flat[1].kv_indices.values());
    EXPECT_EQ(table[0].table.values(), table[1].table.values());
    EXPECT_EQ(draft[0].kv_indices.values(), draft[1].kv_indices.values());
    EXPECT_EQ(draft[0].write_slots.values(), draft[1].write_slots.values());
  }
}

TEST(ExportTest, EveryFormHoldsARowAtTheContextLimitWithItsDraftTokens) {
  SerialExecutor serial;
  for (int raw : {1, 3, 32, 64, 128}) {
    for (int64_t past : {0, 1}) {
      const RowLengths rows[] = {{.kv_len = 4096 + 8 + past}, {.kv_len = 4096 + 8 + past}};
      ScatteredBatch batch(PageSize(raw), rows, 1);
      batch.capacity.context = TokenCount(4096);
      batch.capacity.tree_nodes = TokenCount(8);
      FlatBuffers flat(batch.capacity);
      const auto export_flat = [&] {
        ExportFlatIndices(batch.seqs, batch.capacity, flat.out(), serial, ActiveFaults());
      };
      if (past == 0) {
        export_flat();
        EXPECT_EQ(flat.kv_indices.Damage(), "");
      } else {
        ErrorMessage(ErrorCode::kCapacityExceeded, export_flat);
        EXPECT_TRUE(flat.Untouched());
      }
      if (raw != 32 && raw != 64) continue;
      TableBuffers table(BlockTableRule::kTrtllm, batch.capacity);
      ExportBlockTable(batch.seqs, batch.capacity, table.out(), serial, ActiveFaults());
      EXPECT_EQ(table.table.Damage(), "");
    }
  }
}

TEST(ExportTest, FlatIndicesRefuseMoreKeysThanTheCapacityAndWriteNothing) {
  const RowLengths rows[] = {{.kv_len = 100}, {.kv_len = 29}};
  ScatteredBatch batch(PageSize(1), rows, 1);
  batch.capacity.context = TokenCount(64);
  FlatBuffers flat(batch.capacity);
  SerialExecutor serial;
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] {
                           ExportFlatIndices(batch.seqs, batch.capacity, flat.out(), serial,
                                             ActiveFaults());
                         }),
            "flat_token_indices: need 129 = sum of kv_len over num_seqs 2, capacity 128 = "
            "FlatIndexEntries (num_seqs 2, query_tokens 2, context 64, tree_nodes 0, page_size 1, "
            "pool_pages 138)");
  EXPECT_TRUE(flat.Untouched());
}

TEST_F(WorkedExample, MoreSequencesThanTheBucketAreRefusedByEveryForm) {
  StepCapacity capacity = capacity_;
  capacity.num_seqs = 1;
  capacity.context = TokenCount(1000);
  FlatBuffers flat(capacity);
  TableBuffers table(BlockTableRule::kCeil, capacity);
  DraftRowBuffers rows({.branches = 2, .steps = 1}, capacity);
  DraftTableBuffers tables({.branches = 2, .steps = 1}, capacity);
  const auto expect_refused = [&](const char* buffer, auto fn) {
    EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded, fn),
              std::string(buffer) +
                  ": need 2 = num_seqs, capacity 1 = num_seqs (num_seqs 1, query_tokens 2, context "
                  "1000, tree_nodes 0, page_size 4, pool_pages 17)");
  };
  expect_refused("flat_token_indices",
                 [&] { ExportFlatIndices(seqs_, capacity, flat.out(), serial_); });
  expect_refused("block_table", [&] { ExportBlockTable(seqs_, capacity, table.out(), serial_); });
  expect_refused("draft_rows", [&] { ExportDraftRows(seqs_, capacity, rows.out(), serial_); });
  expect_refused("draft_prefix_table",
                 [&] { ExportDraftTables(seqs_, capacity, tables.out(), serial_); });
  EXPECT_TRUE(flat.Untouched() && table.Untouched() && rows.Untouched() && tables.Untouched());
}

TEST_F(WorkedExample, BadSequencesAreRefusedByNameAndNothingIsWritten) {
  const auto message_of = [&](ErrorCode code, auto change) {
    std::vector<SequenceStep> seqs = seqs_;
    StepCapacity capacity = capacity_;
    change(seqs, capacity);
    TableBuffers table(BlockTableRule::kCeil, capacity);
    const std::string message =
        ErrorMessage(code, [&] { ExportBlockTable(seqs, capacity, table.out(), serial_); });
    EXPECT_TRUE(table.Untouched()) << message;
    return message;
  };
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument,
                       [](auto& seqs, auto&) { seqs[1].kv_len = TokenCount(9); }),
            "block_table: sequence 1: pages: expected 3 (kv_len 9, page_size 4), got 2");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument,
                       [](auto& seqs, auto&) { seqs[0].kv_len = TokenCount(-1); }),
            "block_table: sequence 0: kv_len: expected >= 0, got -1");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument,
                       [](auto&, auto& capacity) { capacity.pool_pages = PageCount(4); }),
            "block_table: sequence 1: page ids: expected 1..3 (a pool of 4 pages), got 4");
  EXPECT_EQ(message_of(ErrorCode::kOverflow,
                       [](auto&, auto& capacity) {
                         capacity.page_size = PageSize(256);
                         capacity.pool_pages = PageCount((1 << 23) + 1);
                       }),
            "block_table: slots of the pool 2147483903 does not fit int32");
  EXPECT_EQ(message_of(ErrorCode::kOverflow,
                       [](auto& seqs, auto&) { seqs[0].kv_len = TokenCount(int64_t{1} << 31); }),
            "block_table: kv_len 2147483648 does not fit int32");
  static constexpr int32_t kNodes[9] = {};
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument,
                       [](auto& seqs, auto&) { seqs[0].tree_parents = kNodes; }),
            "block_table: sequence 0: tree nodes: expected at most kv_len 8, got 9");
}

TEST_F(WorkedExample, FlatOffsetsPastInt32AreRefused) {
  std::vector<SequenceStep> seqs = seqs_;
  for (SequenceStep& seq : seqs) seq.kv_len = TokenCount(int64_t{1} << 30);
  FlatBuffers flat(capacity_);
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow,
                         [&] { ExportFlatIndices(seqs, capacity_, flat.out(), serial_); }),
            "flat_token_indices: entries 2147483648 does not fit int32");
  EXPECT_TRUE(flat.Untouched());
}

TEST_F(WorkedExample, SpansShorterThanTheirSizingFunctionAreRefused) {
  RedZone<int32_t> kv_indptr(3), kv_indices(23);
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument,
                         [&] {
                           ExportFlatIndices(
                               seqs_, capacity_,
                               {.kv_indptr = kv_indptr.span(), .kv_indices = kv_indices.span()},
                               serial_);
                         }),
            "flat_token_indices: expected a span of 24 entries, got 23");
  EXPECT_TRUE(kv_indptr.Untouched() && kv_indices.Untouched());
}

// ---- Tables ----

TEST(BlockTableTest, TrtllmWidthsAreWholePiecesOf4096Tokens) {
  const std::map<std::pair<int64_t, int>, int64_t> widths = {
      {{1, 32}, 128},       {{1, 64}, 64},       {{4096, 32}, 128},    {{4096, 64}, 64},
      {{4097, 32}, 256},    {{4097, 64}, 128},   {{131072, 32}, 4096}, {{131072, 64}, 2048},
      {{163840, 32}, 5120}, {{163840, 64}, 2560}};
  for (const auto& [key, width] : widths) {
    EXPECT_EQ(BlockTableWidth(BlockTableRule::kTrtllm, PageSize(key.second), TokenCount(key.first)),
              PageCount(width))
        << key.first << " tokens, page size " << key.second;
  }
}

TEST(BlockTableTest, GraphWidthsRoundDownAndEagerOnesUp) {
  const auto width = [](BlockTableRule rule, int page_size, int64_t tokens) {
    return BlockTableWidth(rule, PageSize(page_size), TokenCount(tokens)).raw();
  };
  EXPECT_EQ(width(BlockTableRule::kFlashMlaGraph, 64, 1000), 16);
  EXPECT_EQ(width(BlockTableRule::kFlashMlaGraph, 64, 1024), 17);
  EXPECT_EQ(width(BlockTableRule::kFlashMlaEager, 64, 1000), 16);
  EXPECT_EQ(width(BlockTableRule::kFlashMlaEager, 64, 1024), 16);
  EXPECT_EQ(width(BlockTableRule::kCutlassGraph, 128, 1024), 9);
  EXPECT_EQ(width(BlockTableRule::kCutlassEager, 128, 1025), 9);
  EXPECT_EQ(width(BlockTableRule::kCeil, 61, 62), 2);
}

TEST(BlockTableTest, WidthsOfACapacityHaveRoomForTheDraftTokens) {
  const StepCapacity capacity{
      .context = TokenCount(163840), .tree_nodes = TokenCount(8), .page_size = PageSize(64)};
  EXPECT_EQ(BlockTableWidth(BlockTableRule::kTrtllm, capacity), PageCount(2560 + 64));
  EXPECT_EQ(BlockTableWidth(BlockTableRule::kFlashMlaGraph, capacity), PageCount(2561));
  EXPECT_EQ(BlockTableWidth(BlockTableRule::kCeil, capacity), PageCount(2561));
  EXPECT_EQ(UnifiedPageTableWidth(capacity), PageCount(2561));
}

TEST(BlockTableTest, PageSizesTheKernelCannotTakeAreRefused) {
  const auto message_of = [](BlockTableRule rule, int page_size) {
    return ErrorMessage(ErrorCode::kInvalidArgument,
                        [&] { (void)BlockTableWidth(rule, PageSize(page_size), TokenCount(1)); });
  };
  EXPECT_EQ(message_of(BlockTableRule::kFlashMlaGraph, 128),
            "block table (flashmla graph): page_size: expected 64, got 128");
  EXPECT_EQ(message_of(BlockTableRule::kCutlassEager, 64),
            "block table (cutlass eager): page_size: expected 128, got 64");
  EXPECT_EQ(message_of(BlockTableRule::kTrtllm, 16),
            "block table (trtllm): page_size: expected 32 or 64, got 16");
}

TEST_F(WorkedExample, ARowWiderThanTheTableIsRefusedAndNoRowIsWritten) {
  StepCapacity capacity = capacity_;
  capacity.context = TokenCount(4);
  TableBuffers table(BlockTableRule::kCeil, capacity);
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] { ExportBlockTable(seqs_, capacity, table.out(), serial_); }),
            "block_table: need 2 = pages of kv_len 8 at page_size 4 (row 0), capacity 1 = width "
            "(num_seqs 2, query_tokens 2, context 4, tree_nodes 0, page_size 4, pool_pages 17)");
  EXPECT_TRUE(table.Untouched());
  RedZone<int32_t> unified(Index(UnifiedPageTableEntries(capacity)));
  RedZone<int32_t> kv_lens(Index(capacity.num_seqs));
  const std::string message = ErrorMessage(ErrorCode::kCapacityExceeded, [&] {
    ExportUnifiedPageTable(seqs_, capacity, {.table = unified.span(), .kv_lens = kv_lens.span()},
                           serial_);
  });
  EXPECT_EQ(message.substr(0, 26), "unified_page_table: need 2");
  EXPECT_TRUE(unified.Untouched() && kv_lens.Untouched());
}

TEST(BlockTableTest, AWideTableIsDefinedToItsLastEntry) {
  const RowLengths rows[] = {{.kv_len = 70}, {.kv_len = 0}};
  ScatteredBatch batch(PageSize(64), rows, 1);
  batch.capacity.context = TokenCount(131072);
  ThreadPool pool(2);
  TableBuffers table(BlockTableRule::kTrtllm, batch.capacity);
  ExportBlockTable(batch.seqs, batch.capacity, table.out(/*fill=*/1), pool, ActiveFaults());
  std::vector<int32_t> expected(table.table.span().size(), 1);
  expected[0] = batch.pages[0][0].raw();
  expected[1] = batch.pages[0][1].raw();
  EXPECT_EQ(table.table.values(), expected);
}

// ---- Drafting ----

// The page lists of the worked example: rows of 20 and 16 slots, from slots 4 and 24 on.
struct DraftExample {
  explicit DraftExample(int page_size) {
    const auto add_row = [&](int64_t committed, int64_t first_slot, int64_t slots) {
      std::vector<PageId>& row = pages.emplace_back();
      for (int64_t slot = first_slot; slot < first_slot + slots; slot += page_size) {
        row.push_back(PageId(slot / page_size));
      }
      seqs.push_back({.q_len = TokenCount(1),
                      .kv_len = TokenCount(committed),
                      .pages = row,
                      .tree_parents = {}});
    };
    pages.reserve(2);
    add_row(6, 4, 20);
    add_row(8, 24, 16);
    capacity = CapacityOf(seqs, PageSize(page_size), PageCount(256 / page_size + 1));
  }
  std::vector<std::vector<PageId>> pages;
  std::vector<SequenceStep> seqs;
  StepCapacity capacity;
};

struct DraftCase {
  int page_size;
  int branches;
  std::vector<int64_t> starts;
  std::vector<std::vector<int32_t>> indptr;        // per step
  std::vector<std::vector<int32_t>> step_1_tails;  // the two drafts of every branch at step 1
};

TEST(DraftRowsTest, RowsOfTheWorkedExample) {
  const std::vector<std::vector<int32_t>> two_branches = {
      {0, 7, 14, 23, 32}, {0, 8, 16, 26, 36}, {0, 9, 18, 29, 40}};
  const std::vector<std::vector<int32_t>> one_branch = {{0, 7, 16}, {0, 8, 18}, {0, 9, 20}};
  const DraftCase cases[] = {
      {4, 2, {6, 14, 8, 12}, two_branches, {{10, 11}, {18, 19}, {32, 33}, {36, 37}}},
      {4, 1, {6, 8}, one_branch, {{10, 11}, {32, 33}}},
      {1, 2, {6, 9, 8, 11}, two_branches, {{10, 11}, {13, 14}, {32, 33}, {35, 36}}},
  };
  SerialExecutor serial;
  for (const DraftCase& expected : cases) {
    const DraftExample example(expected.page_size);
    const DraftShape shape{.branches = expected.branches, .steps = 3};
    DraftRowBuffers draft(shape, example.capacity);
    ExportDraftRows(example.seqs, example.capacity, draft.out(), serial, ActiveFaults());
    std::vector<int64_t> starts;
    for (const SequenceStep& seq : example.seqs) {
      for (int32_t t = 0; t < shape.branches; ++t) {
        starts.push_back(DraftStart(seq.committed(), t, shape, PageSize(expected.page_size)).raw());
      }
    }
    EXPECT_EQ(starts, expected.starts);
    for (int64_t i = 0; i < shape.steps; ++i) EXPECT_EQ(draft.Indptr(i), expected.indptr[Index(i)]);
    for (size_t z = 0; z < expected.step_1_tails.size(); ++z) {
      const std::vector<int32_t> row = draft.Row(1);
      const auto end = row.begin() + expected.indptr[1][z + 1];
      EXPECT_EQ(std::vector(end - 2, end), expected.step_1_tails[z]) << "branch row " << z;
    }
  }
}

TEST(DraftRowsTest, WriteSlotsFollowTheBranches) {
  const DraftExample example(4);
  DraftRowBuffers draft({.branches = 2, .steps = 3}, example.capacity);
  SerialExecutor serial;
  ExportDraftRows(example.seqs, example.capacity, draft.out(), serial, ActiveFaults());
  EXPECT_EQ(draft.write_slots.values(),
            (std::vector<int64_t>{10, 11, 12, 18, 19, 20, 32, 33, 34, 36, 37, 38}));
}

// Rows to draft behind: an empty one, and committed lengths around the edges of a page.
std::vector<RowLengths> DraftEdgeRows(int page_size, const DraftShape& shape) {
  const int64_t room = int64_t{shape.branches} * (2 * page_size + shape.steps);
  return {{.kv_len = 1, .room = room},
          {.kv_len = 0},
          {.kv_len = std::max(page_size - 1, 1), .room = room},
          {.kv_len = page_size, .room = room},
          {.kv_len = 2 * page_size + 1, .room = room}};
}

// The committed tokens and the branch's drafts up to this step; none for a padded row.
std::vector<std::vector<KeyName>> DraftKeyNames(const ScatteredBatch& batch,
                                                const DraftShape& shape, int32_t step) {
  std::vector<std::vector<KeyName>> keys;
  for (size_t b = 0; b < batch.seqs.size(); ++b) {
    const TokenCount committed = batch.seqs[b].committed();
    for (int32_t t = 0; t < shape.branches; ++t) {
      keys.emplace_back();
      if (committed == TokenCount(0)) continue;
      for (int64_t p = 0; p < committed.raw(); ++p) keys.back().push_back({b, p});
      const int64_t start = DraftStart(committed, t, shape, batch.capacity.page_size).raw();
      for (int64_t s = 0; s <= step; ++s) keys.back().push_back({b, start + s});
    }
  }
  return keys;
}

// Writes every draft where the exported slots say.
void StoreDrafts(const ScatteredBatch& batch, DraftRowBuffers& draft, NamedAttention& attention) {
  size_t next = 0;
  for (size_t b = 0; b < batch.seqs.size(); ++b) {
    for (int32_t t = 0; t < draft.shape.branches; ++t) {
      const TokenCount start =
          DraftStart(batch.seqs[b].committed(), t, draft.shape, batch.capacity.page_size);
      for (int64_t s = 0; s < draft.shape.steps; ++s) {
        attention.Store({b, start.raw() + s}, Slot(draft.write_slots.span()[next++]));
      }
    }
  }
}

TEST(DraftRowsTest, EveryStepAttendsToItsPrefixAndItsOwnBranch) {
  SerialExecutor serial;
  for (int raw : kPageSizes) {
    for (const DraftShape& shape :
         {DraftShape{.branches = 1, .steps = 3}, DraftShape{.branches = 2, .steps = 2},
          DraftShape{.branches = 3, .steps = 5}}) {
      const ScatteredBatch batch(PageSize(raw), DraftEdgeRows(raw, shape), 23);
      DraftRowBuffers draft(shape, batch.capacity);
      ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial, ActiveFaults());
      const int64_t num_rows = static_cast<int64_t>(batch.seqs.size()) * shape.branches;
      NamedAttention attention(batch, num_rows, 2);
      attention.StoreAll(batch);
      StoreDrafts(batch, draft, attention);
      std::vector<int32_t> one_query_each;
      for (int32_t z = 0; z <= num_rows; ++z) one_query_each.push_back(z);
      for (int32_t i = 0; i < shape.steps; ++i) {
        const AttentionOutput actual = FlatIndexAttention(
            attention.inputs(), one_query_each, draft.Indptr(i), draft.Row(i), KeyMask::kFull);
        EXPECT_LE(Difference(actual, attention.Expected(DraftKeyNames(batch, shape, i))),
                  kNamedTolerance)
            << "page size " << raw << ", branches " << shape.branches << ", step " << i;
      }
      EXPECT_EQ(draft.kv_indices.Damage(), "");
      EXPECT_EQ(draft.kv_indptr.Damage(), "");
      EXPECT_EQ(draft.write_slots.Damage(), "");
    }
  }
}

TEST(DraftRowsTest, DraftsOfDifferentBranchesNeverShareASlot) {
  SerialExecutor serial;
  for (int raw : kPageSizes) {
    const DraftShape shape{.branches = 4, .steps = 5};
    std::vector<RowLengths> rows = DraftEdgeRows(raw, shape);
    rows.erase(rows.begin() + 1);  // padded rows all write to slot 0
    const ScatteredBatch batch(PageSize(raw), rows, 29);
    DraftRowBuffers draft(shape, batch.capacity);
    ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial, ActiveFaults());
    std::vector<int64_t> slots = draft.write_slots.values();
    for (size_t b = 0; b < batch.seqs.size(); ++b) {
      for (int64_t p = 0; p < rows[b].kv_len; ++p) slots.push_back(batch.SlotAt(b, p).raw());
    }
    std::sort(slots.begin(), slots.end());
    EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end()) << "page size " << raw;
  }
}

TEST(DraftRowsTest, OrdinaryBatchAtTheContextLimitFitsItsRows) {
  const DraftShape shape{.branches = 8, .steps = 5};
  const RowLengths rows[] = {{.kv_len = 300, .room = 1100}, {.kv_len = 300, .room = 1100}};
  const ScatteredBatch batch(PageSize(64), rows, 31);
  DraftRowBuffers draft(shape, batch.capacity);
  SerialExecutor serial;
  ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial, ActiveFaults());
  EXPECT_EQ(draft.Indptr(4).back(), 8 * (2 * 300 + 2 * 5));
  EXPECT_EQ(draft.Indptr(4).back(), draft.row_entries);
  EXPECT_EQ(draft.kv_indices.Damage(), "");
}

TEST(DraftRowsTest, MoreThanTheCapacityIsRefusedWithEveryFactor) {
  const RowLengths rows[] = {{.kv_len = 60, .room = 20}, {.kv_len = 50, .room = 20}};
  ScatteredBatch batch(PageSize(1), rows, 1);
  batch.capacity.context = TokenCount(54);
  DraftRowBuffers draft({.branches = 3, .steps = 4}, batch.capacity);
  SerialExecutor serial;
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] { ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial); }),
            "draft_rows: need 354 = branches 3 * (sum of committed 110 + num_seqs 2 * steps 4), "
            "capacity 348 = DraftRowEntries (branches 3, steps 4, num_seqs 2, query_tokens 2, "
            "context 54, tree_nodes 0, page_size 1, pool_pages 159)");
  EXPECT_TRUE(draft.Untouched());
}

TEST(DraftRowsTest, APageListThatEndsBeforeTheLastBranchIsRefused) {
  DraftExample example(4);
  example.seqs[1].pages = std::span(example.pages[1]).first(3);
  SerialExecutor serial;
  const DraftShape shape{.branches = 2, .steps = 3};
  DraftRowBuffers rows(shape, example.capacity);
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kInvalidArgument,
                   [&] { ExportDraftRows(example.seqs, example.capacity, rows.out(), serial); }),
      "draft_rows: sequence 1: pages: expected 4 (drafts behind kv_len 8, page_size 4), got 3");
  DraftTableBuffers tables(shape, example.capacity);
  EXPECT_EQ(
      ErrorMessage(
          ErrorCode::kInvalidArgument,
          [&] { ExportDraftTables(example.seqs, example.capacity, tables.out(), serial); }),
      "draft_prefix_table: sequence 1: pages: expected 4 (drafts behind kv_len 8, page_size 4), "
      "got 3");
  EXPECT_TRUE(rows.Untouched() && tables.Untouched());
}

TEST(DraftRowsTest, RowsPastInt32AreRefused) {
  const DraftExample example(4);
  DraftRowBuffers draft({.branches = 1, .steps = 1}, example.capacity);
  DraftRows out = draft.out();
  out.shape.branches = 1 << 30;
  SerialExecutor serial;
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow,
                         [&] { ExportDraftRows(example.seqs, example.capacity, out, serial); }),
            "draft_rows: entries of one step 17179869184 does not fit int32");
  EXPECT_TRUE(draft.Untouched());
}

TEST(DraftRowsTest, TreeNodesOfTheStepAreNotCommitted) {
  const RowLengths rows[] = {{.q_len = 3, .kv_len = 9, .room = 30}};
  ScatteredBatch batch(PageSize(4), rows, 1);
  static constexpr int32_t kParents[] = {kTreeRoot, 0, 0};
  batch.seqs[0].tree_parents = kParents;
  DraftRowBuffers draft({.branches = 2, .steps = 1}, batch.capacity);
  SerialExecutor serial;
  ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial, ActiveFaults());
  EXPECT_EQ(draft.Indptr(0), (std::vector{0, 7, 14}));
}

TEST(DraftTablesTest, TablesOfTheWorkedExample) {
  const DraftExample example(4);
  DraftTableBuffers tables({.branches = 2, .steps = 3}, example.capacity);
  SerialExecutor serial;
  ExportDraftTables(example.seqs, example.capacity, tables.out(/*fill=*/-1), serial,
                    ActiveFaults());
  EXPECT_EQ(tables.prefix_table.values(), (std::vector{1, -1, 6, 7}));
  EXPECT_EQ(tables.prefix_lens.values(), (std::vector{4, 8}));
  EXPECT_EQ(tables.branch_width, 2);
  EXPECT_EQ(tables.branch_lens.values(), (std::vector{3, 3, 1, 1, 4, 4, 2, 2, 5, 5, 3, 3}));
  EXPECT_EQ(Slice(tables.branch_table.span(), 0, 8), (std::vector{2, -1, 4, -1, 8, -1, 9, -1}));
  EXPECT_EQ(Slice(tables.branch_table.span(), 16, 8), (std::vector{2, 3, 4, 5, 8, -1, 9, -1}));
}

// The first `rest` rows of every branch's first page, but the first branch's, whose own they are.
void CopyPrefixTails(const ScatteredBatch& batch, const DraftShape& shape,
                     NamedAttention& attention) {
  const PageSize page_size = batch.capacity.page_size;
  for (size_t b = 0; b < batch.seqs.size(); ++b) {
    const TokenCount committed = batch.seqs[b].committed();
    const int64_t rest = page_size.OffsetOf(committed);
    for (int32_t t = 1; t < shape.branches; ++t) {
      const int64_t start = DraftStart(committed, t, shape, page_size).raw();
      for (int64_t j = 0; j < rest; ++j) {
        attention.Store({b, committed.raw() - rest + j}, batch.SlotAt(b, start - rest + j));
      }
    }
  }
}

TEST(DraftTablesTest, TwoPassesEqualAttentionOverPositions) {
  SerialExecutor serial;
  for (int raw : kPageSizes) {
    for (const DraftShape& shape :
         {DraftShape{.branches = 1, .steps = 2}, DraftShape{.branches = 2, .steps = 3},
          DraftShape{.branches = 3, .steps = 5}}) {
      const ScatteredBatch batch(PageSize(raw), DraftEdgeRows(raw, shape), 37);
      DraftRowBuffers draft(shape, batch.capacity);
      DraftTableBuffers tables(shape, batch.capacity);
      ExportDraftRows(batch.seqs, batch.capacity, draft.out(), serial, ActiveFaults());
      ExportDraftTables(batch.seqs, batch.capacity, tables.out(-1), serial, ActiveFaults());
      NamedAttention attention(batch, tables.rows, 2);
      attention.StoreAll(batch);
      StoreDrafts(batch, draft, attention);
      CopyPrefixTails(batch, shape, attention);

      std::vector<int32_t> one_query_each = {0}, one_query_per_branch = {0};
      for (int32_t z = 1; z <= tables.rows; ++z) one_query_each.push_back(z);
      for (int32_t z = shape.branches; z <= tables.rows; z += shape.branches) {
        one_query_per_branch.push_back(z);
      }
      const AttentionOutput prefix = BlockTableAttention(attention.inputs(), one_query_per_branch,
                                                         {.table = tables.prefix_table.span(),
                                                          .kv_lens = tables.prefix_lens.span(),
                                                          .width = tables.prefix_width,
                                                          .page_size = PageSize(raw)},
                                                         KeyMask::kFull);
      for (int32_t i = 0; i < shape.steps; ++i) {
        const std::vector<int32_t> table =
            Slice(tables.branch_table.span(), i * tables.rows * tables.branch_width,
                  tables.rows * tables.branch_width);
        const std::vector<int32_t> lens =
            Slice(tables.branch_lens.span(), i * tables.rows, tables.rows);
        const AttentionOutput branches = BlockTableAttention(attention.inputs(), one_query_each,
                                                             {.table = table,
                                                              .kv_lens = lens,
                                                              .width = tables.branch_width,
                                                              .page_size = PageSize(raw)},
                                                             KeyMask::kFull);
        EXPECT_LE(Difference(testing::MergeByLse(prefix, branches),
                             attention.Expected(DraftKeyNames(batch, shape, i))),
                  kNamedTolerance)
            << "page size " << raw << ", branches " << shape.branches << ", step " << i;
      }
      EXPECT_EQ(tables.prefix_table.Damage(), "");
      EXPECT_EQ(tables.branch_table.Damage(), "");
      EXPECT_EQ(tables.branch_lens.Damage(), "");
      EXPECT_EQ(tables.prefix_lens.Damage(), "");
    }
  }
}

TEST(DraftTablesTest, APrefixPastTheContextIsRefused) {
  DraftExample example(4);
  example.capacity.context = TokenCount(7);
  DraftTableBuffers tables({.branches = 2, .steps = 3}, example.capacity);
  SerialExecutor serial;
  EXPECT_EQ(
      ErrorMessage(
          ErrorCode::kCapacityExceeded,
          [&] { ExportDraftTables(example.seqs, example.capacity, tables.out(), serial); }),
      "draft_prefix_table: need 2 = full pages of committed 8 at page_size 4 (row 1), capacity 1 "
      "= width (num_seqs 2, query_tokens 2, context 7, tree_nodes 0, page_size 4, pool_pages 65)");
  EXPECT_TRUE(tables.Untouched());
}

}  // namespace
}  // namespace quire
