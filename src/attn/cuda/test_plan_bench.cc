#include "attn/cuda/test_plan_bench.h"

#include "attn/checks.h"
#include "attn/plan_elements.h"

namespace quire::cuda {
namespace {

using ::quire::Index;

PageCount Common(std::span<const PageId> a, std::span<const PageId> b) {
  return PageCount(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

template <class T>
std::span<const T> First(const std::vector<T>& values, size_t count) {
  return std::span(values).first(count);
}

}  // namespace

PlanBench::PlanBench(const MachineShape& shape)
    : shape_(shape),
      machine_(MakeMachine(shape)),
      host_(shape.capacity, shape.work),
      rows_(Index(shape.num_rows)) {}

std::vector<RowUse> PlanBench::ChooseRows(std::span<const SequenceStep> seqs) const {
  std::vector<RowUse> uses;
  std::vector<bool> taken(rows_.size());
  for (const SequenceStep& seq : seqs) {
    RowUse best;
    if (seq.kv_len > TokenCount(0)) {
      for (size_t row = 0; row < rows_.size(); ++row) {
        if (taken[row]) continue;
        const PageCount common = Common(rows_[row], seq.pages);
        if (best.row != kNoRow && common <= best.unchanged) continue;
        best = {.row = static_cast<int32_t>(row), .unchanged = common};
      }
      taken[Index(best.row)] = true;
    }
    uses.push_back(best);
  }
  return uses;
}

void PlanBench::Make(std::span<const SequenceStep> seqs, const std::vector<RowUse>& uses) {
  machine_->Pack(seqs, uses);
  for (size_t b = 0; b < seqs.size(); ++b) {
    if (uses[b].row == kNoRow) continue;
    rows_[Index(uses[b].row)].assign(seqs[b].pages.begin(), seqs[b].pages.end());
  }
  machine_->Run();
  plan_ = &host_.Make(seqs, executor_);
}

void PlanBench::ExpectPlan() {
  const PlanCopy copy = machine_->Copy();
  const Plan& plan = *plan_;
  const auto n = Index(plan.num_seqs);
  EXPECT_EQ(machine_->TakeFault(), "");
  ASSERT_EQ(copy.seq_counts, *plan.seq_counts);
  ASSERT_EQ(copy.counts, *plan.counts);
  ExpectRows(copy);
  ExpectSame("kv_len", First(copy.kv_len, n), plan.kv_len);
  ExpectSame("committed", First(copy.committed, n), plan.committed);
  ExpectSame("q_offset", First(copy.q_offset, n + 1), plan.q_offset);
  for (size_t b = n; b < copy.kv_len.size(); ++b) {
    EXPECT_EQ(copy.kv_len[b], TokenCount(0)) << "padding row " << b;
    EXPECT_EQ(copy.q_offset[b + 1], plan.num_query_tokens) << "padding row " << b;
  }
  ExpectSame("tiles", First(copy.tiles, plan.tiles.size()), plan.tiles);
  ExpectSame("workers", copy.workers, plan.workers);
  ExpectSame("merges", First(copy.merges, plan.merges.size()), plan.merges);
  ExpectView(copy);
}

void PlanBench::ExpectRows(const PlanCopy& copy) const {
  for (int32_t b = 0; b < plan_->num_seqs; ++b) {
    const size_t pages = Index(plan_->page_size.PagesFor(plan_->kv_len[Index(b)]).raw());
    const PageId* row = copy.page_rows.data() + copy.row_of[Index(b)] * shape_.row_width.raw();
    ExpectSame("pages of a sequence", std::span(row, pages), std::span(plan_->Row(b), pages));
  }
  for (size_t row = 0; row < rows_.size(); ++row) {
    ExpectSame(
        "a row",
        std::span(copy.page_rows).subspan(row * Index(shape_.row_width.raw()), rows_[row].size()),
        rows_[row]);
  }
}

void PlanBench::ExpectView(const PlanCopy& copy) const {
  Sequences view = *plan_;
  view.row_width = shape_.row_width;
  view.page_rows = copy.page_rows;
  view.row_of = copy.row_of;
  view.kv_len = copy.kv_len;
  view.committed = copy.committed;
  view.q_offset = copy.q_offset;
  view.tree_masks = copy.tree_masks;
  for (const QueryTile& tile : plan_->tiles) {
    for (int32_t i = 0; i < tile.q_count; ++i) {
      const TokenCount query = tile.q_begin + TokenCount(i);
      const TokenCount visible = plan_->Visible(tile.seq, query);
      ASSERT_EQ(view.Visible(tile.seq, query), visible) << "query " << query;
      TokenCount p = plan_->IsTree(tile.seq) ? plan_->committed[Index(tile.seq)] : visible;
      for (p = Max(TokenCount(0), p - TokenCount(2)); p < visible; p += TokenCount(1)) {
        const TokenCount position = plan_->KeyPosition(tile.seq, query, p);
        ASSERT_EQ(view.KeyPosition(tile.seq, query, p), position);
        ASSERT_EQ(view.SlotAt(tile.seq, position), plan_->SlotAt(tile.seq, position));
      }
    }
  }
}

MachineShape SmallShape() {
  return {.capacity = kPlanCapacity,
          .work = kWork,
          .new_pages = PageCount(600),
          .num_rows = 5,
          .row_width = PageCount(190),
          .threads = 4};
}

SmallBatches::SmallBatches()
    : a_(Pages(1, 188)),
      b_(Pages(200, 188)),
      c_(Pages(400, 188)),
      chain_{-1, 0, 1},
      tree_{-1, 0, 0, 1, 3},
      worked_{-1, 0, 0, 1, 2, 3} {
  const auto step = [](int64_t q_len, int64_t kv_len, const std::vector<PageId>& pages,
                       std::span<const int32_t> parents = {}) {
    return SequenceStep{.q_len = TokenCount(q_len),
                        .kv_len = TokenCount(kv_len),
                        .pages = pages,
                        .tree_parents = parents};
  };
  batches_ = {
      {step(1, 33, a_), step(1, 0, {})},
      {step(30, 3000, a_), step(3, 90, b_, chain_), step(1, 3008, c_)},
      {step(2, 17, c_)},
      {step(6, 100, a_), step(5, 105, b_, tree_), step(3, 1, c_)},
      {step(6, 16, a_, worked_)},
      {},
      {step(0, 50, a_), step(0, 0, {}), step(4, 8, b_), step(0, 3, c_)},
      {step(40, 40, b_)},
      {step(1, 3008, a_), step(1, 3008, b_), step(1, 3008, c_), step(1, 0, {})},
  };
}

MachineShape ShapeOf(const testing::RandomConfig& config, int threads) {
  const StepCapacity capacity = config.BucketCapacity();
  const PageCount width = config.page_size.PagesFor(
      TokenCount(config.ReservedTokens(config.context) + config.page_size.raw() * 16));
  return {.capacity = capacity,
          .work = config.work,
          .new_pages = width * capacity.num_seqs,
          .num_rows = capacity.num_seqs + 2,
          .row_width = width,
          .threads = threads};
}

}  // namespace quire::cuda
