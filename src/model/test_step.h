// One sequence's steps through layers of one geometry, on the CPU: what the tests of drafts share.
#ifndef QUIRE_MODEL_TEST_STEP_H_
#define QUIRE_MODEL_TEST_STEP_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "attn/plan_storage.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/weight_packer.h"
#include "model/forward.h"

namespace quire::testing {

using State = std::vector<float>;

inline constexpr int64_t kTestContext = 192;

// What one row of a draft takes, and what it says.
struct DraftRow {
  int32_t token = 0;  // the one behind the row
  int64_t position = 0;
  State state = {};
};
struct Drafted {
  State state = {};
  std::vector<float> logits = {};

  double Logprob(int32_t token) const {
    double sum = 0;
    const double highest = *std::ranges::max_element(logits);
    for (const float logit : logits) sum += std::exp(logit - highest);
    return logits[static_cast<size_t>(token)] - highest - std::log(sum);
  }
  int32_t Best() const {
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  bool operator==(const Drafted&) const = default;
};

inline State RowOf(const TensorView& view, int64_t row) {
  return {view.Row<float>(row), view.Row<float>(row) + view.dim(1)};
}

// Memory that `lay_out(carver)` takes, twice: counted, then for good.
template <class LayOut>
std::unique_ptr<Buffer> TakeCounted(LayOut lay_out) {
  Carver counter;
  lay_out(counter);
  auto memory = std::make_unique<Buffer>("a test", counter.used());
  Carver carver(memory->bytes());
  lay_out(carver);
  return memory;
}

// Buffers and stores hold NaN where nothing was written.
class TestStep {
 public:
  TestStep(const ModelConfig& config, int32_t page_size)
      : config_(config),
        capacity_{.num_seqs = 1,
                  .query_tokens = TokenCount(kTestContext),
                  .context = TokenCount(kTestContext),
                  .tree_nodes = TokenCount(16),
                  .page_size = PageSize(page_size),
                  .pool_pages =
                      PageSize(page_size).PagesFor(TokenCount(kTestContext + 16)) + PageCount(1)},
        work_(cpu::MlaWorkShape(AttentionShape(config_), 2)),
        plans_(capacity_, work_),
        memory_(TakeCounted([&](Carver& carver) { LayOut(carver); })) {
    std::memset(memory_->bytes().data(), 0xff, memory_->bytes().size());
    for (int32_t i = 1; i < capacity_.pool_pages.raw(); ++i) pages_.push_back(PageId(i));
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(7));
  }

  // A store more, of latent rows or of index keys.
  void AddStore() { AddStore({KvFormat::kLatentF32, AttentionShape(config_).dims, page_size()}); }
  void AddIndexStore() {
    AddStore({KvFormat::kIndexKeyF32,
              {.latent_dim = config_.indexer->head_dim, .rope_dim = 0},
              page_size()});
  }
  std::span<const KvStore> stores() const { return stores_; }

  // Of the `count` tokens from place `begin` of the sequence on.
  const Plan& MakePlan(int64_t begin, int64_t count, const std::vector<int32_t>& parents = {}) {
    const SequenceStep step{.q_len = TokenCount(count),
                            .kv_len = TokenCount(begin + count),
                            .pages = pages_,
                            .tree_parents = parents};
    return plans_.Make(std::span(&step, 1), pool_);
  }
  bool Chooses(const Plan& plan) const {
    return config_.indexer && std::ranges::any_of(plan.tiles, [&](const QueryTile& tile) {
             return tile.kv_end > TokenCount(config_.indexer->top_k);
           });
  }
  std::vector<TokenCount> Positions(int64_t begin, int64_t count) const {
    std::vector<TokenCount> positions;
    for (int64_t i = begin; i < begin + count; ++i) positions.emplace_back(i);
    return positions;
  }
  std::vector<Slot> Slots(int64_t begin, int64_t count) const {
    std::vector<Slot> slots;
    for (int64_t i = begin; i < begin + count; ++i) {
      slots.push_back(page_size().SlotOf(pages_[static_cast<size_t>(i / page_size().raw())],
                                         static_cast<int32_t>(i % page_size().raw())));
    }
    return slots;
  }

  const ForwardBuffers& buffers() const { return buffers_; }
  cpu::CpuOps ops() { return cpu::CpuOps(scratch_, pool_, clock_); }
  Executor& executor() { return pool_; }

 private:
  PageSize page_size() const { return capacity_.page_size; }

  void LayOut(Carver& carver) {
    buffers_ = LayOutForward(config_, capacity_, DType::kF32, carver);
    scratch_ = cpu::LayOutOps(OpLimitsOf(config_, capacity_, work_), carver);
  }

  void AddStore(const KvLayout& layout) {
    store_memory_.push_back(
        std::make_unique<Buffer>("a store", KvStoreBytes(layout, capacity_.pool_pages)));
    const std::span<std::byte> bytes = store_memory_.back()->bytes();
    std::memset(bytes.data(), 0xff, bytes.size());
    stores_.emplace_back(bytes, capacity_.pool_pages, layout);
  }

  const ModelConfig config_;
  const StepCapacity capacity_;
  const WorkShape work_;
  ThreadPool pool_{2};
  PlanStorage plans_;
  ForwardBuffers buffers_;
  cpu::OpScratch scratch_;
  cpu::PartClock clock_;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::unique_ptr<Buffer>> store_memory_;
  std::vector<KvStore> stores_;
  std::vector<PageId> pages_;
};

}  // namespace quire::testing

#endif  // QUIRE_MODEL_TEST_STEP_H_
