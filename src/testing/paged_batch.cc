#include "testing/paged_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>

#include "attn/plan_storage.h"
#include "base/tensor_view.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/store.h"
#include "testing/compare.h"
#include "testing/red_zone.h"
#include "testing/splitmix64.h"

namespace quire::testing {
namespace {

std::vector<std::vector<PageId>> DealPages(const std::vector<SequenceCase>& cases,
                                           const PagedBatchShape& shape) {
  std::vector<std::vector<PageId>> pages(cases.size());
  int64_t total = shape.spare_pages;
  for (const SequenceCase& c : cases) {
    total += shape.page_size.PagesFor(TokenCount(c.kv_len)).raw();
  }
  std::vector<int32_t> ids(static_cast<size_t>(total));
  std::iota(ids.begin(), ids.end(), 1);
  std::shuffle(ids.begin(), ids.end(), std::mt19937_64(shape.page_seed));
  size_t next = 0;
  for (size_t b = 0; b < cases.size(); ++b) {
    const int64_t n = shape.page_size.PagesFor(TokenCount(cases[b].kv_len)).raw();
    for (int64_t j = 0; j < n; ++j) pages[b].push_back(PageId(ids[next++]));
  }
  return pages;
}

PageCount PoolPages(const std::vector<std::vector<PageId>>& pages, int64_t spare_pages) {
  int64_t total = 1 + spare_pages;
  for (const auto& row : pages) total += static_cast<int64_t>(row.size());
  return PageCount(total);
}

}  // namespace

std::vector<float> MadeUpValues(uint64_t seed, int64_t position, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  uint64_t state = SplitMix64(seed * 0x100000001b3u + static_cast<uint64_t>(position));
  for (float& value : values) {
    state = SplitMix64(state);
    // Two uniforms summed: bell enough, and exactly reproducible everywhere.
    value = (static_cast<float>(state & 0xffff) + static_cast<float>((state >> 16) & 0xffff)) /
                0x1p16f -
            1.0f;
    value *= 2.0f;
  }
  return values;
}

PagedBatch::PagedBatch(std::vector<SequenceCase> cases, const PagedBatchShape& shape, Faults faults)
    : shape_(shape),
      cases_(std::move(cases)),
      pages_(DealPages(cases_, shape)),
      memory_("test pool", KvStoreBytes(KvLayout(shape.format, shape.dims, shape.page_size),
                                        PoolPages(pages_, shape.spare_pages))),
      store_(memory_.bytes(), PoolPages(pages_, shape.spare_pages),
             KvLayout(shape.format, shape.dims, shape.page_size), faults) {
  std::memset(memory_.data(), 0xff, memory_.bytes().size());
  for (size_t b = 0; b < cases_.size(); ++b) {
    const SequenceCase& c = cases_[b];
    seqs_.push_back({.q_len = TokenCount(c.q_len),
                     .kv_len = TokenCount(c.kv_len),
                     .pages = pages_[b],
                     .tree_parents = c.parents});
    for (int64_t j = 0; j < c.q_len; ++j) {
      const int64_t position = c.kv_len - c.q_len + j;
      const int64_t content = position < 0 ? position : c.ContentAt(position);
      const std::vector<float> values =
          MadeUpValues(c.seed + 1000003, content, int64_t{shape.num_heads} * shape.dims.values());
      for (float value : values) q_.push_back(shape.q_size * value);
      const std::vector<float> gates = MadeUpValues(c.seed + 2000003, content, shape.num_heads);
      gates_.insert(gates_.end(), gates.begin(), gates.end());
    }
    num_tokens_ += c.q_len;
  }
  WriteRows();
}

void PagedBatch::WriteRows() {
  SerialExecutor executor;
  const KvDims dims = shape_.dims;
  for (size_t b = 0; b < cases_.size(); ++b) {
    for (int64_t p = 0; p < cases_[b].kv_len; ++p) {
      std::vector<float> row = MadeUpValues(cases_[b].seed, cases_[b].ContentAt(p), dims.values());
      for (float& value : row) value *= shape_.row_size;
      const Slot slot = SlotAt(b, p);
      cpu::StoreWrite({.store = store_,
                       .slots = {&slot, 1},
                       .latent = ConstTensorView(row.data(), {1, dims.latent_dim}),
                       .rope = dims.rope_dim > 0 ? ConstTensorView(row.data() + dims.latent_dim,
                                                                   {1, dims.rope_dim})
                                                 : ConstTensorView()},
                      executor);
    }
  }
}

Slot PagedBatch::SlotAt(size_t seq, int64_t position) const {
  const TokenCount at(position);
  return shape_.page_size.SlotOf(
      pages_[seq][static_cast<size_t>(shape_.page_size.FullPages(at).raw())],
      shape_.page_size.OffsetOf(at));
}

std::vector<std::vector<std::vector<double>>> PagedBatch::Rows() const {
  std::vector<std::vector<std::vector<double>>> rows(cases_.size());
  for (size_t b = 0; b < cases_.size(); ++b) {
    for (int64_t p = 0; p < cases_[b].kv_len; ++p) {
      rows[b].push_back(ReferenceRow(memory_.bytes(), store_.layout(), SlotAt(b, p)));
    }
  }
  return rows;
}

std::string BitMismatch(const AttentionResult& actual, const AttentionResult& expected) {
  const std::string out = BitMismatch(std::span<const float>(actual.out), expected.out);
  return out.empty() ? BitMismatch(std::span<const float>(actual.lse), expected.lse) : out;
}

AttentionResult RunMla(const PagedBatch& batch, const MlaRun& run, Executor& executor) {
  const PagedBatchShape& shape = batch.shape();
  const MlaShape mla{.num_heads = shape.num_heads, .dims = shape.dims};
  const StepCapacity capacity = run.capacity != nullptr ? *run.capacity : batch.Capacity();
  const WorkShape work = run.work != nullptr ? *run.work : cpu::MlaWorkShape(mla, run.num_workers);
  PlanStorage storage(capacity, work);
  const Plan& plan = storage.Make(batch.seqs(), executor, run.faults);
  const int64_t tokens = batch.num_tokens();
  const int64_t rows = tokens * shape.num_heads;
  RedZone<float> out(static_cast<size_t>(rows * shape.dims.latent_dim));
  RedZone<float> lse(static_cast<size_t>(rows));
  RedZone<std::byte> workspace(
      static_cast<size_t>(cpu::MlaAttentionWorkspace(capacity, work, mla).raw()));
  cpu::MlaAttention(
      {.plan = plan,
       .store = batch.store(),
       .q = ConstTensorView(batch.q().data(), {tokens, shape.num_heads, shape.dims.values()}),
       .out = TensorView(out.data(), {tokens, shape.num_heads, shape.dims.latent_dim}),
       .lse = TensorView(lse.data(), {tokens, shape.num_heads}),
       .scale = run.scale,
       .workspace = workspace.span()},
      executor);
  for (const std::string& damage : {out.Damage(), lse.Damage(), workspace.Damage()}) {
    if (!damage.empty()) throw std::runtime_error("red zone " + damage);
  }
  return {.out = {out.span().begin(), out.span().end()},
          .lse = {lse.span().begin(), lse.span().end()}};
}

}  // namespace quire::testing
