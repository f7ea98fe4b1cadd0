// Paged latent attention with the library alone: one step of two sequences, a decode and a prefill
// chunk, at the page size given (64 if none). The checksums are of the results' bits, and the same
// at every page size.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "quire/attn/kv_store.h"
#include "quire/attn/plan_storage.h"
#include "quire/base/error.h"
#include "quire/cache/page_list.h"
#include "quire/cache/page_pool.h"
#include "quire/device/buffer.h"
#include "quire/device/thread_pool.h"
#include "quire/kernels/cpu/mla_attention.h"
#include "quire/kernels/cpu/store.h"

using namespace quire;

namespace {

constexpr KvDims kDims{.latent_dim = 128, .rope_dim = 32};
constexpr MlaShape kShape{.num_heads = 4, .dims = kDims};
constexpr TokenCount kQLens[] = {TokenCount(1), TokenCount(48)};       // tokens of this step
constexpr TokenCount kKvLens[] = {TokenCount(1500), TokenCount(300)};  // with those before them

// n numbers in -1..1 that depend on `seed` alone, where a model would give its activations.
std::vector<float> MadeUp(uint64_t seed, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
  }
  return values;
}

void Run(PageSize page_size) {
  ThreadPool threads(ThreadPool::DefaultThreads());

  // Who holds which page: a pool hands them out, a list per sequence keeps them in order.
  PagePool pool(page_size.PagesFor(TokenCount(4096)), page_size);
  PageList lists[] = {PageList(page_size), PageList(page_size)};
  const ExtendRequest requests[] = {{&lists[0], kKvLens[0]}, {&lists[1], kKvLens[1]}};
  if (!ExtendLists(pool, requests)) {
    throw Error(ErrorCode::kCapacityExceeded, "{} pages are too few", pool.num_pages());
  }

  // The bytes of all pages, the scratch page 0 besides the pool's, in memory of our own.
  const PageCount num_pages = pool.num_pages() + PageCount(1);
  const KvLayout layout(KvFormat::kLatentBf16, kDims, page_size);
  const Buffer memory("KV pages", KvStoreBytes(layout, num_pages));
  const KvStore store(memory.bytes(), num_pages, layout);
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < std::size(lists); ++i) {
    steps.push_back({.q_len = kQLens[i], .kv_len = kKvLens[i], .pages = lists[i].PageIds()});
    const int64_t num_tokens = kKvLens[i].raw();
    const std::vector<float> latent = MadeUp(i + 1, num_tokens * kDims.latent_dim);
    const std::vector<float> rope = MadeUp(i + 3, num_tokens * kDims.rope_dim);
    std::vector<Slot> slots;
    lists[i].AppendSlots(TokenCount(0), slots);
    cpu::StoreWrite({.store = store,
                     .slots = slots,
                     .latent = {latent.data(), {num_tokens, kDims.latent_dim}},
                     .rope = {rope.data(), {num_tokens, kDims.rope_dim}}},
                    threads);
  }

  // The plan says who does what. It is made once per step and serves every layer.
  const StepCapacity capacity = CapacityOf(steps, page_size, num_pages);
  PlanStorage plans(capacity, cpu::MlaWorkShape(kShape, threads.num_threads()));
  const Plan& plan = plans.Make(steps, threads);

  const int64_t num_tokens = plan.num_query_tokens.raw();
  const std::vector<float> q = MadeUp(5, num_tokens * kShape.num_heads * kDims.values());
  std::vector<float> out(static_cast<size_t>(num_tokens * kShape.num_heads * kDims.latent_dim));
  const Buffer workspace("workspace", cpu::MlaAttentionWorkspace(capacity, plan.work, kShape));
  cpu::MlaAttention({.plan = plan,
                     .store = store,
                     .q = {q.data(), {num_tokens, kShape.num_heads, kDims.values()}},
                     .out = {out.data(), {num_tokens, kShape.num_heads, kDims.latent_dim}},
                     .lse = {},
                     .scale = 0.08f,
                     .workspace = workspace.bytes()},
                    threads);

  fmt::print("page size {}: {} of {} pages used\n", page_size, pool.num_used(), pool.num_pages());
  const float* result = out.data();
  for (const SequenceStep& step : steps) {
    uint64_t checksum = 0;
    for (int64_t i = 0; i < step.q_len.raw() * kShape.num_heads * kDims.latent_dim; ++i) {
      checksum = checksum * 1099511628211u + std::bit_cast<uint32_t>(*result++);
    }
    fmt::print("  last {:2} of {:4} tokens: checksum {:016x}\n", step.q_len, step.kv_len, checksum);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(PageSize(argc > 1 ? std::atoi(argv[1]) : 64));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
