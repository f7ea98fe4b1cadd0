#include "interop/prefill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "base/error.h"
#include "interop/export.h"
#include "testing/active_faults.h"
#include "testing/error_message.h"
#include "testing/export_kernels.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::AttentionOutput;
using testing::CausalKeys;
using testing::Difference;
using testing::ErrorMessage;
using testing::KeyName;
using testing::kNamedTolerance;
using testing::NamedAttention;
using testing::PrefillAttention;
using testing::RedZone;
using testing::RowLengths;
using testing::ScatteredBatch;

// The arrays of a plan, each between red zones.
template <class Block>
class PlanBuffers {
 public:
  PlanBuffers(const StepCapacity& capacity, const PrefillShape& shape) {
    const int64_t tiles = PrefillQueryTiles(capacity, shape);
    plan_.shape = shape;
    plan_.arrays = {.qo_indptr = Add(IndptrEntries(capacity)),
                    .kv_indptr = Add(IndptrEntries(capacity)),
                    .kv_lens = Add(capacity.num_seqs),
                    .work_indptr = Add(shape.num_workers + 1),
                    .work_info = Add(PrefillWorks(capacity, shape) * kNumWorkFields),
                    .reduce_indptr = Add(tiles + 1),
                    .reduce_final_map = Add(2 * tiles),
                    .reduce_partial_map = Add(PrefillPartials(capacity, shape))};
  }

  const PrefillPlan<Block>& plan() const { return plan_; }
  const PrefillArrays& arrays() const { return plan_.arrays; }
  int64_t num_works() const { return arrays().work_indptr.back(); }
  std::span<const int32_t> Work(int64_t work) const {
    return arrays().work_info.subspan(Index(work * kNumWorkFields), kNumWorkFields);
  }
  // "" if all red zones are whole.
  std::string Damage() const {
    std::string damage;
    for (const RedZone<int32_t>& zone : zones_) damage += zone.Damage();
    return damage;
  }
  bool Untouched() const {
    return std::all_of(zones_.begin(), zones_.end(),
                       [](const RedZone<int32_t>& zone) { return zone.Untouched(); });
  }

 private:
  std::span<int32_t> Add(int64_t size) { return zones_.emplace_back(Index(size)).span(); }
  std::deque<RedZone<int32_t>> zones_;
  PrefillPlan<Block> plan_;
};

std::vector<SequenceStep> StepsOf(std::span<const RowLengths> rows) {
  std::vector<SequenceStep> seqs;
  for (const RowLengths& row : rows) {
    seqs.push_back({.q_len = TokenCount(row.q_len),
                    .kv_len = TokenCount(row.kv_len),
                    .pages = {},
                    .tree_parents = {}});
  }
  return seqs;
}

int64_t Visible(const PrefillShape& shape, const SequenceStep& seq, int64_t q_end) {
  if (shape.mask == PrefillMask::kFull) return seq.kv_len.raw();
  return std::clamp<int64_t>(seq.kv_len.raw() - seq.q_len.raw() + q_end, 0, seq.kv_len.raw());
}

// The tokens of [0, visible), rounded up to the granularity, that the sequence has.
int64_t CoveredKeys(const PrefillShape& shape, const SequenceStep& seq, int64_t q_end) {
  const int64_t granularity = shape.kv_granularity.raw();
  const int64_t visible = Visible(shape, seq, q_end);
  return std::min((visible + granularity - 1) / granularity * granularity, seq.kv_len.raw());
}

// Invariant 1 of the plan, read with the block that the kernel dereferences.
template <class Block>
void ExpectPiecesPartitionTheirTiles(const PlanBuffers<Block>& buffers,
                                     std::span<const SequenceStep> seqs, PageSize page_size) {
  const PrefillShape& shape = buffers.plan().shape;
  const PrefillArrays& arrays = buffers.arrays();
  std::map<std::array<int32_t, 3>, int64_t> covered;  // {query begin, end, heads} -> blocks
  for (int64_t w = 0; w < buffers.num_works(); ++w) {
    const auto work = buffers.Work(w);
    const auto seq = Index(work[kWorkSeq]);
    const std::array<int32_t, 3> tile = {work[kWorkQueryBegin], work[kWorkQueryEnd],
                                         work[kWorkHeads]};
    EXPECT_EQ(work[kWorkKvBegin] - arrays.kv_indptr[seq], covered[tile])
        << "prefill plan: pieces of tile [" << tile[0] << ", " << tile[1]
        << ") leave a gap or overlap";
    covered[tile] = work[kWorkKvEnd] - arrays.kv_indptr[seq];
  }
  int64_t num_tiles = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int64_t q_len = seqs[b].q_len.raw();
    for (int64_t begin = 0; begin < q_len; begin += shape.query_granularity.raw()) {
      const int64_t end = std::min(begin + shape.query_granularity.raw(), q_len);
      const TokenCount keys(CoveredKeys(shape, seqs[b], end));
      for (int32_t head = 0; head < shape.num_heads_k; ++head, ++num_tiles) {
        const int32_t group = shape.heads_per_key_head;
        const std::array<int32_t, 3> tile = {arrays.qo_indptr[b] + static_cast<int32_t>(begin),
                                             arrays.qo_indptr[b] + static_cast<int32_t>(end),
                                             (head * group) | ((head + 1) * group << 16)};
        const bool has_work = covered.contains(tile);
        EXPECT_TRUE(has_work) << "prefill plan: pieces of tile [" << tile[0] << ", " << tile[1]
                              << ") of key head " << head << ": there are none";
        if (!has_work) continue;
        EXPECT_EQ(covered[tile], Block::BlocksFor(page_size, keys))
            << "prefill plan: pieces of tile [" << tile[0] << ", " << tile[1] << ") of key head "
            << head << " cover " << covered[tile] << " blocks of the " << keys << " keys it sees";
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(covered.size()), num_tiles);
}

// Invariant 2, and that the unused tails are defined.
template <class Block>
void ExpectReduceMapsMatchTheWorks(const PlanBuffers<Block>& buffers) {
  const PrefillArrays& arrays = buffers.arrays();
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> groups;
  for (int64_t w = 0; w < buffers.num_works(); ++w) {
    const auto work = buffers.Work(w);
    if (work[kWorkPartialRow] < 0) continue;
    std::vector<int32_t>& partials = groups[{work[kWorkQueryBegin], work[kWorkQueryEnd]}];
    const auto place = std::lower_bound(partials.begin(), partials.end(), work[kWorkPartialRow]);
    if (place == partials.end() || *place != work[kWorkPartialRow]) {
      partials.insert(place, work[kWorkPartialRow]);
    }
  }
  std::vector<int32_t> indptr = {0}, final_map, partial_map;
  for (const auto& [tokens, partials] : groups) {
    final_map.insert(final_map.end(), {tokens.first, tokens.second});
    partial_map.insert(partial_map.end(), partials.begin(), partials.end());
    indptr.push_back(static_cast<int32_t>(partial_map.size()));
  }
  indptr.resize(arrays.reduce_indptr.size(), indptr.back());
  final_map.resize(arrays.reduce_final_map.size(), 0);
  partial_map.resize(arrays.reduce_partial_map.size(), 0);
  const auto values = [](std::span<const int32_t> array) {
    return std::vector(array.begin(), array.end());
  };
  EXPECT_EQ(values(arrays.reduce_indptr), indptr);
  EXPECT_EQ(values(arrays.reduce_final_map), final_map);
  EXPECT_EQ(values(arrays.reduce_partial_map), partial_map);
}

// {query begin, query end, kv begin, kv end, partial row, kv offset} of every work.
using WorkNumbers = std::vector<std::array<int32_t, 6>>;

// One head, four workers, one sequence of 1000 new tokens.
WorkNumbers WorksOfTheWorkedExample(PageSize page_size, Faults faults) {
  const std::vector<SequenceStep> seqs = StepsOf(std::array{RowLengths{1000, 1000}});
  const PrefillShape shape{.num_workers = 4, .max_q_len = TokenCount(1000)};
  const StepCapacity capacity = CapacityOf(seqs, page_size, PageCount(1));
  PlanBuffers<TokenBlocks> buffers(capacity, shape);
  PlanPrefill(seqs, capacity, buffers.plan(), faults);
  WorkNumbers works;
  for (int64_t w = 0; w < buffers.num_works(); ++w) {
    const auto work = buffers.Work(w);
    works.push_back({work[kWorkQueryBegin], work[kWorkQueryEnd], work[kWorkKvBegin],
                     work[kWorkKvEnd], work[kWorkPartialRow], work[kWorkKvOffset]});
  }
  return works;
}

const WorkNumbers kWorkedExample = {{0, 256, 0, 256, -1, 0},        {768, 1000, 0, 384, 0, 616},
                                    {768, 1000, 384, 1000, 256, 0}, {256, 512, 0, 512, -1, 0},
                                    {512, 768, 0, 128, 512, 872},   {512, 768, 128, 768, 768, 0}};

TEST(PrefillPlanTest, WorksOfTheWorkedExampleAtEveryPageSize) {
  for (int page_size : {1, 16, 61, 64, 256}) {
    EXPECT_EQ(WorksOfTheWorkedExample(PageSize(page_size), ActiveFaults()), kWorkedExample)
        << "page size " << page_size;
  }
}

#ifdef QUIRE_FAULTS
TEST(PrefillPlanTest, CountingPagesReproducesTheRangesOfTheOldPlanner) {
  const Faults faults(Fault::kTilesCountedInPages);
  EXPECT_EQ(WorksOfTheWorkedExample(PageSize(64), faults),
            (WorkNumbers{{0, 256, 0, 4, -1, 0},
                         {768, 1000, 0, 6, 0, 616},
                         {768, 1000, 6, 16, 256, 0},
                         {256, 512, 0, 8, -1, 0},
                         {512, 768, 0, 2, 512, 872},
                         {512, 768, 2, 12, 768, 0}}));
  EXPECT_EQ(WorksOfTheWorkedExample(PageSize(1), faults), kWorkedExample)
      << "page size 1 hid the fault";
}
#endif

TEST(PrefillPlanTest, ManyWorkersAndHeads) {
  const std::vector<SequenceStep> seqs =
      StepsOf(std::array{RowLengths{600, 600}, RowLengths{1000, 1000}});
  const PrefillShape shape{.num_heads_k = 16, .num_workers = 304, .max_q_len = TokenCount(1000)};
  const StepCapacity capacity = CapacityOf(seqs, PageSize(64), PageCount(1));
  PlanBuffers<TokenBlocks> buffers(capacity, shape);
  PlanPrefill(seqs, capacity, buffers.plan(), ActiveFaults());
  EXPECT_EQ(buffers.num_works(), 368);
  const auto reduce_indptr = buffers.arrays().reduce_indptr;
  EXPECT_EQ(reduce_indptr.back(), 22);
  EXPECT_EQ(std::find(reduce_indptr.begin(), reduce_indptr.end(), 22) - reduce_indptr.begin(), 6);
  ExpectPiecesPartitionTheirTiles(buffers, seqs, capacity.page_size);
  ExpectReduceMapsMatchTheWorks(buffers);
  EXPECT_EQ(buffers.Damage(), "");
}

TEST(PrefillPlanTest, SizingFunctionsAreThoseOfThePlanner) {
  const StepCapacity capacity{.num_seqs = 2};
  const PrefillShape shape{.num_heads_k = 16, .num_workers = 304, .max_q_len = TokenCount(1000)};
  // gcd(16, 304) = 16 clusters of 19 workers; 4 query tiles a sequence.
  EXPECT_EQ(PrefillQueryTiles(capacity, shape), 2 * 4);
  EXPECT_EQ(PrefillWorks(capacity, shape), (2 + 19 - 1) * 4 * 16);
  EXPECT_EQ(PrefillPartials(capacity, shape), (2 + 19 - 1) * 4);
  EXPECT_EQ(PrefillPartialRows(capacity, shape), (2 + 19 - 1) * 4 * 256);
}

template <class Block>
void ExpectPlanIsSound(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                       const PrefillShape& shape) {
  PlanBuffers<Block> buffers(capacity, shape);
  PlanPrefill(seqs, capacity, buffers.plan(), ActiveFaults());
  ExpectPiecesPartitionTheirTiles(buffers, seqs, capacity.page_size);
  ExpectReduceMapsMatchTheWorks(buffers);
  EXPECT_EQ(buffers.Damage(), "");
}

TEST(PrefillPlanTest, PiecesOfEveryTilePartitionTheKeysItSees) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<RowLengths> rows;
    for (int b = pick(1, 6); b > 0; --b) {
      const int q_len = pick(0, 700);
      rows.push_back({.q_len = q_len, .kv_len = std::max(0, q_len + pick(-100, 900))});
    }
    const std::vector<SequenceStep> seqs = StepsOf(rows);
    const PageSize page_size(std::array{1, 2, 16, 61, 64, 128, 256}[Index(pick(0, 6))]);
    PrefillShape shape{.num_heads_k = pick(1, 6),
                       .heads_per_key_head = pick(1, 3),
                       .num_workers = pick(1, 40),
                       .max_q_len = TokenCount(700),
                       .query_granularity = TokenCount(pick(1, 256)),
                       .mask = pick(0, 3) == 0 ? PrefillMask::kFull : PrefillMask::kCausal};
    SCOPED_TRACE(fmt::format("round {}, page size {}", round, page_size));
    const StepCapacity capacity = CapacityOf(seqs, page_size, PageCount(1));
    ExpectPlanIsSound<TokenBlocks>(seqs, capacity, shape);
    shape.kv_granularity = page_size.tokens() * pick(1, 3);
    ExpectPlanIsSound<PageBlocks>(seqs, capacity, shape);
    if (HasFailure()) return;
  }
}

TEST(PrefillPlanTest, PlansOfTheLargestGranularitiesAreSound) {
  const std::vector<SequenceStep> seqs =
      StepsOf(std::array{RowLengths{600, 700}, RowLengths{1, 1}, RowLengths{3, 0}});
  const StepCapacity capacity = CapacityOf(seqs, PageSize(64), PageCount(1));
  const TokenCount most(std::numeric_limits<int32_t>::max());
  PrefillShape shape{.max_q_len = TokenCount(600), .kv_granularity = most};
  for (int32_t num_workers : {1, 2, 7}) {
    shape.num_workers = num_workers;
    ExpectPlanIsSound<TokenBlocks>(seqs, capacity, shape);
  }
  shape.num_workers = 1;  // with more, partial rows do not fit int32
  shape.query_granularity = most;
  ExpectPlanIsSound<TokenBlocks>(seqs, capacity, shape);
}

const RowLengths kAttentionRows[] = {{.q_len = 70, .kv_len = 70}, {.q_len = 0, .kv_len = 9},
                                     {.q_len = 3, .kv_len = 0},   {.q_len = 33, .kv_len = 301},
                                     {.q_len = 40, .kv_len = 33}, {.q_len = 1, .kv_len = 130}};

PrefillShape AttentionShape() {
  return {.num_heads_k = 2,
          .heads_per_key_head = 2,
          .num_workers = 10,
          .max_q_len = TokenCount(70),
          .query_granularity = TokenCount(16),
          .kv_granularity = TokenCount(32)};
}

TEST(PrefillPlanTest, AttentionByTokensEqualsAttentionOverPositions) {
  SerialExecutor serial;
  for (int raw : {1, 2, 3, 16, 61, 64, 128, 256}) {
    const ScatteredBatch batch(PageSize(raw), kAttentionRows, 41);
    PlanBuffers<TokenBlocks> buffers(batch.capacity, AttentionShape());
    PlanPrefill(batch.seqs, batch.capacity, buffers.plan(), ActiveFaults());
    std::vector<int32_t> kv_indptr(Index(IndptrEntries(batch.capacity)));
    std::vector<int32_t> kv_indices(Index(FlatIndexEntries(batch.capacity).raw()));
    ExportFlatIndices(batch.seqs, batch.capacity,
                      {.kv_indptr = kv_indptr, .kv_indices = kv_indices}, serial);
    EXPECT_TRUE(std::equal(kv_indptr.begin(), kv_indptr.end(), buffers.arrays().kv_indptr.begin()));
    NamedAttention attention(batch, batch.capacity.query_tokens.raw(), 4);
    attention.StoreAll(batch);
    EXPECT_LE(Difference(PrefillAttention(attention.inputs(), buffers.plan(), kv_indices),
                         attention.Expected(CausalKeys(batch.seqs))),
              kNamedTolerance)
        << "page size " << raw;
    EXPECT_GT(buffers.arrays().reduce_indptr.back(), 0) << "nothing was split";
  }
}

TEST(PrefillPlanTest, AttentionByPagesEqualsAttentionOverPositions) {
  SerialExecutor serial;
  for (int raw : {1, 2, 3, 16, 61, 64, 128, 256}) {
    const ScatteredBatch batch(PageSize(raw), kAttentionRows, 43);
    PrefillShape shape = AttentionShape();
    shape.kv_granularity = TokenCount(raw >= 16 ? raw : raw * 16);
    PlanBuffers<PageBlocks> buffers(batch.capacity, shape);
    PlanPrefill(batch.seqs, batch.capacity, buffers.plan(), ActiveFaults());
    std::vector<int32_t> kv_indptr(Index(IndptrEntries(batch.capacity)));
    std::vector<int32_t> kv_pages(Index(FlatPageEntries(batch.capacity).raw()));
    std::vector<int32_t> last_page_len(Index(batch.capacity.num_seqs));
    ExportFlatPages(batch.seqs, batch.capacity,
                    {.kv_indptr = kv_indptr, .kv_pages = kv_pages, .last_page_len = last_page_len},
                    serial);
    EXPECT_TRUE(std::equal(kv_indptr.begin(), kv_indptr.end(), buffers.arrays().kv_indptr.begin()));
    NamedAttention attention(batch, batch.capacity.query_tokens.raw(), 4);
    attention.StoreAll(batch);
    EXPECT_LE(
        Difference(PrefillAttention(attention.inputs(), buffers.plan(), kv_pages, PageSize(raw)),
                   attention.Expected(CausalKeys(batch.seqs))),
        kNamedTolerance)
        << "page size " << raw;
  }
}

TEST(PrefillPlanTest, WithoutAMaskEveryQuerySeesEveryKey) {
  SerialExecutor serial;
  const RowLengths rows[] = {{.q_len = 20, .kv_len = 100}, {.q_len = 5, .kv_len = 7}};
  const ScatteredBatch batch(PageSize(16), rows, 47);
  PrefillShape shape = AttentionShape();
  shape.mask = PrefillMask::kFull;
  PlanBuffers<TokenBlocks> buffers(batch.capacity, shape);
  PlanPrefill(batch.seqs, batch.capacity, buffers.plan(), ActiveFaults());
  std::vector<int32_t> kv_indptr(3), kv_indices(Index(FlatIndexEntries(batch.capacity).raw()));
  ExportFlatIndices(batch.seqs, batch.capacity, {.kv_indptr = kv_indptr, .kv_indices = kv_indices},
                    serial);
  NamedAttention attention(batch, 25, 4);
  attention.StoreAll(batch);
  std::vector<std::vector<KeyName>> keys(25);
  for (size_t token = 0; token < keys.size(); ++token) {
    const size_t seq = token < 20 ? 0 : 1;
    for (int64_t p = 0; p < rows[seq].kv_len; ++p) keys[token].push_back({seq, p});
  }
  EXPECT_LE(Difference(PrefillAttention(attention.inputs(), buffers.plan(), kv_indices),
                       attention.Expected(keys)),
            kNamedTolerance);
}

TEST(PrefillPlanTest, FewerSequencesThanTheBucketArePadded) {
  const std::vector<SequenceStep> seqs = StepsOf(std::array{RowLengths{10, 30}});
  StepCapacity capacity = CapacityOf(seqs, PageSize(4), PageCount(1));
  capacity.num_seqs = 3;
  PlanBuffers<PageBlocks> buffers(capacity, {.num_workers = 2, .max_q_len = TokenCount(16)});
  PlanPrefill(seqs, capacity, buffers.plan(), ActiveFaults());
  const auto values = [](std::span<const int32_t> array) {
    return std::vector(array.begin(), array.end());
  };
  EXPECT_EQ(values(buffers.arrays().qo_indptr), (std::vector{0, 10, 10, 10}));
  EXPECT_EQ(values(buffers.arrays().kv_indptr), (std::vector{0, 8, 8, 8}));
  EXPECT_EQ(values(buffers.arrays().kv_lens), (std::vector{30, 0, 0}));
  EXPECT_EQ(buffers.num_works(), 1);
}

TEST(PrefillPlanTest, AnEmptyStepHasNoWork) {
  const StepCapacity capacity{.num_seqs = 0, .query_tokens = TokenCount(0)};
  PlanBuffers<TokenBlocks> buffers(capacity, {.num_workers = 3});
  PlanPrefill<TokenBlocks>({}, capacity, buffers.plan(), ActiveFaults());
  EXPECT_EQ(buffers.num_works(), 0);
  EXPECT_EQ(buffers.arrays().reduce_indptr.back(), 0);
}

TEST(PrefillPlanTest, MoreThanTheCapacityIsRefusedWithEveryFactorAndNothingIsWritten) {
  const std::vector<SequenceStep> seqs =
      StepsOf(std::array{RowLengths{600, 600}, RowLengths{1000, 1000}});
  StepCapacity capacity = CapacityOf(seqs, PageSize(64), PageCount(1));
  PrefillShape shape{.num_heads_k = 4, .num_workers = 8, .max_q_len = TokenCount(512)};
  PlanBuffers<TokenBlocks> narrow(capacity, shape);
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] { PlanPrefill(seqs, capacity, narrow.plan()); }),
            "prefill_plan.reduce_final_map: need 8 = num_seqs 2, query tiles 4 of a sequence, "
            "workers 2 of a cluster, num_heads_k 4, capacity 4 = num_seqs 2, query tiles 2 of a "
            "sequence, workers 2 of a cluster, num_heads_k 4");
  EXPECT_TRUE(narrow.Untouched());
  capacity.num_seqs = 1;
  shape.max_q_len = TokenCount(4096);
  PlanBuffers<TokenBlocks> few(capacity, shape);
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kCapacityExceeded, [&] { PlanPrefill(seqs, capacity, few.plan()); }),
      "prefill_plan.qo_indptr: need 3 = num_seqs 2, query tiles 4 of a sequence, workers 2 "
      "of a cluster, num_heads_k 4, capacity 2 = num_seqs 1, query tiles 16 of a sequence, "
      "workers 2 of a cluster, num_heads_k 4");
  EXPECT_TRUE(few.Untouched());
}

TEST(PrefillPlanTest, BadInputIsRefusedByNameAndNothingIsWritten) {
  const auto message_of = [](ErrorCode code, const RowLengths& row, auto change) {
    const std::vector<SequenceStep> seqs = StepsOf(std::array{row});
    const StepCapacity capacity{.page_size = PageSize(61)};
    PrefillShape shape{.max_q_len = TokenCount(256)};
    change(shape);
    PlanBuffers<PageBlocks> buffers(capacity, PrefillShape{.max_q_len = TokenCount(256)});
    const PrefillPlan<PageBlocks> plan{.shape = shape, .arrays = buffers.arrays()};
    const std::string message = ErrorMessage(code, [&] { PlanPrefill(seqs, capacity, plan); });
    EXPECT_TRUE(buffers.Untouched()) << message;
    return message;
  };
  const auto pages_of_61 = [](PrefillShape& shape) { shape.kv_granularity = TokenCount(122); };
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, {1, 1}, [](PrefillShape&) {}),
            "prefill.kv_granularity: expected a multiple of the block's 61 tokens, got 128");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, {-1, 1}, pages_of_61),
            "prefill_plan: sequence 0: q_len: expected >= 0, got -1");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, {1, -1}, pages_of_61),
            "prefill_plan: sequence 0: kv_len: expected >= 0, got -1");
  EXPECT_EQ(message_of(ErrorCode::kOverflow, {1, int64_t{1} << 31}, pages_of_61),
            "prefill_plan: keys 2147483648 does not fit int32");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, {1, 1},
                       [](PrefillShape& shape) { shape.num_workers = 0; }),
            "prefill.num_workers: expected >= 1, got 0");
  EXPECT_EQ(message_of(ErrorCode::kInvalidArgument, {1, 1},
                       [](PrefillShape& shape) {
                         shape.kv_granularity = TokenCount(61);
                         shape.num_workers = 2;
                       }),
            "prefill_plan.work_indptr: expected a span of 3 entries, got 2");
}

// They wrapped the planner's sums: it wrote past its arrays, or dealt no work and said nothing.
TEST(PrefillPlanTest, GranularitiesPastInt32AreRefusedAndNothingIsWritten) {
  const std::vector<SequenceStep> seqs =
      StepsOf(std::array{RowLengths{100, 100}, RowLengths{100, 100}});
  const StepCapacity capacity = CapacityOf(seqs, PageSize(64), PageCount(1));
  const auto message_of = [&](PrefillShape shape) {
    shape.max_q_len = TokenCount(100);
    PlanBuffers<TokenBlocks> buffers(capacity, {.max_q_len = TokenCount(100)});
    const PrefillPlan<TokenBlocks> plan{.shape = shape, .arrays = buffers.arrays()};
    const std::string message = ErrorMessage([&] { PlanPrefill(seqs, capacity, plan); });
    EXPECT_TRUE(buffers.Untouched()) << message;
    return message;
  };
  for (int64_t bad :
       {int64_t{0}, int64_t{1} << 31, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    const std::string expected = fmt::format("_granularity: expected 1..2147483647, got {}", bad);
    EXPECT_EQ(message_of({.query_granularity = TokenCount(bad)}), "prefill.query" + expected);
    EXPECT_EQ(message_of({.kv_granularity = TokenCount(bad)}), "prefill.kv" + expected);
  }
}

}  // namespace
}  // namespace quire
