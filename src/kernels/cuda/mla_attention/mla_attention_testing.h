// A step on the device as tests and benchmarks want it: a plan and a store made on the host, copied.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TESTING_H_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TESTING_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/plan.h"
#include "attn/plan_storage.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/mla_attention/late_rows.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_launch.h"
#include "testing/paged_batch.h"

namespace quire::cuda {

// Memory of the device that begins with what a span of the host held.
class DeviceArrays {
 public:
  template <class T>
  std::span<T> Put(std::span<const T> values) {
    const std::span<T> to = Take<T>(values.size());
    CopyAndWait(to.data(), values.data(), values.size_bytes(), "a test's memory to the device");
    // The call may return before the last bytes are there, and our streams do not wait for it.
    Check(cudaStreamSynchronize(nullptr), "a test's memory to the device");
    return to;
  }
  template <class T>
  std::span<T> Put(const std::vector<T>& values) {
    return Put(std::span<const T>(values));
  }
  template <class T>
  std::span<T> Take(size_t n) {
    buffers_.emplace_back("test", ByteOffset(std::max<size_t>(1, n) * sizeof(T)));
    return {reinterpret_cast<T*>(buffers_.back().data()), n};
  }

 private:
  std::deque<DeviceBuffer> buffers_;
};

template <class T>
std::vector<T> ToHost(std::span<const T> values, const Stream& stream) {
  stream.Synchronize();
  std::vector<T> host(values.size());
  CopyAndWait(host.data(), values.data(), values.size_bytes(), "a test's memory from the device");
  return host;
}

// An array on the device between two guards.
template <class T>
class GuardedArray {
 public:
  GuardedArray(DeviceArrays& arrays, size_t n)
      : all_(arrays.Put(std::vector<T>(n + 2 * kGuard, Fill()))), n_(n) {}
  T* data() const { return all_.data() + kGuard; }
  std::span<T> span() const { return all_.subspan(kGuard, n_); }

  // Throws if a guard was written.
  std::vector<T> Values(const Stream& stream) const {
    const std::vector<T> host = ToHost(std::span<const T>(all_), stream);
    const T fill = Fill();
    for (size_t i = 0; i < kGuard; ++i) {
      if (std::memcmp(&host[i], &fill, sizeof(T)) != 0 ||
          std::memcmp(&host[kGuard + n_ + i], &fill, sizeof(T)) != 0) {
        throw std::runtime_error("written outside: guard " + std::to_string(i));
      }
    }
    return {host.begin() + kGuard, host.begin() + static_cast<int64_t>(kGuard + n_)};
  }

 private:
  static constexpr size_t kGuard = 64;  // keeps what is behind it aligned
  static T Fill() {
    std::array<unsigned char, sizeof(T)> bytes;
    bytes.fill(0xA5);
    return std::bit_cast<T>(bytes);
  }
  std::span<T> all_;
  size_t n_;
};

// A plan in host memory, copied to the device.
class PlanCopy {
 public:
  explicit PlanCopy(const Plan& plan) : plan_(plan) {
    plan_.memory = MemorySide::kDevice;
    plan_.seq_counts = arrays_.Put(std::span(plan.seq_counts, 1)).data();
    plan_.counts = arrays_.Put(std::span(plan.counts, 1)).data();
    plan_.page_rows = arrays_.Put(plan.page_rows);
    plan_.row_of = arrays_.Put(plan.row_of);
    plan_.kv_len = arrays_.Put(plan.kv_len);
    plan_.committed = arrays_.Put(plan.committed);
    plan_.q_offset = arrays_.Put(plan.q_offset);
    plan_.tree_masks = arrays_.Put(plan.tree_masks);
    plan_.tiles = arrays_.Put(plan.tiles);
    plan_.workers = arrays_.Put(plan.workers);
    plan_.merges = arrays_.Put(plan.merges);
    plan_.arrived = arrays_.Put(std::span<const int32_t>(plan.arrived));
  }
  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
  DeviceArrays arrays_;
};

// A batch's store, copied to the device.
inline KvStore StoreOnDevice(const testing::PagedBatch& batch, DeviceArrays& arrays,
                             Faults faults = {}) {
  return KvStore(arrays.Put(std::span<const std::byte>(batch.pool())), batch.pool_pages(),
                 batch.store().layout(), faults);
}

inline std::vector<Bf16> AllToBf16(std::span<const float> values) {
  std::vector<Bf16> narrow;
  for (float value : values) narrow.push_back(quire::ToBf16(value));
  return narrow;
}
// What bf16 keeps of the values.
inline std::vector<float> RoundedToBf16(std::span<const float> values) {
  std::vector<float> rounded;
  for (float value : values) rounded.push_back(ToFloat(quire::ToBf16(value)));
  return rounded;
}

struct MlaDeviceRun {
  MlaKernel kernel = MlaKernel::kPlain;  // others read the queries as bf16
  int32_t num_workers = 3;
  int32_t ctas = 1;  // of a worker
  int repeats = 1;   // over the same plan and workspace
  bool exact = true;
  MlaStep step = MlaStep::kAny;
  TokenCount tile_tokens{0};  // where set, instead of the tiles that the step would have
  TokenCount split{0};        // likewise
  int32_t cut_cost = -1;      // likewise, where it is not negative
  const StepCapacity* capacity = nullptr;  // where set, instead of the batch's own
  bool bf16_out = false;
  bool overlaps = false;  // in a stream that does
  // So, and behind a kernel that writes the step's queries and keys late, and over the results.
  bool is_behind_late_rows = false;
  Faults faults = {};
  StatusWord status = {};
};

// What the kernel before a step of attention writes, of memory that holds NaNs instead until then: queries, and all keys
// that are not of earlier steps (mla_attention.h). It leaves NaNs in the results.
class LateRows {
 public:
  LateRows(const testing::PagedBatch& batch, const Plan& plan, DeviceArrays& arrays) {
    const auto row_bytes = static_cast<size_t>(batch.store().layout().packed_row_bytes());
    const std::span<const std::byte> pool = batch.pool();
    pool_.assign(pool.begin(), pool.end());
    const std::span<std::byte> right = arrays.Put(std::span<const std::byte>(pool_));
    for (size_t seq = 0; seq < batch.seqs().size(); ++seq) {
      const int64_t old_end = plan.committed[seq].raw() - batch.num_tokens();
      for (int64_t p = std::max<int64_t>(0, old_end); p < plan.kv_len[seq].raw(); ++p) {
        const size_t at = static_cast<size_t>(batch.SlotAt(seq, p).raw()) * row_bytes;
        std::fill_n(pool_.begin() + static_cast<int64_t>(at), row_bytes, std::byte{0xff});
        keys_.push_back({.at = at, .from = right.data() + at, .bytes = row_bytes});
      }
    }
  }

  // Has NaNs stand in `pool` and `q`, and gives the stream the kernel that writes what belongs there.
  void Begin(std::span<std::byte> pool, std::span<Bf16> q, std::span<float> out,
             DeviceArrays& arrays, const Stream& stream) {
    std::vector<LateRow> rows;
    for (const Key& key : keys_) {
      rows.push_back({.to = pool.data() + key.at, .from = key.from, .bytes = key.bytes});
    }
    if (q_.empty()) q_ = arrays.Put(ToHost(std::span<const Bf16>(q), stream));
    const std::span<float> nans = arrays.Put(std::vector<float>(out.size(), NAN));
    rows.push_back(RowOf(q, std::span<const Bf16>(q_)));
    rows.push_back(RowOf(out, std::span<const float>(nans)));
    CopyAndWait(pool.data(), pool_.data(), pool_.size(), "keys that are not there");
    const std::vector<float> none(q.size_bytes() / sizeof(float), NAN);
    CopyAndWait(q.data(), none.data(), q.size_bytes(), "queries that are not there");
    const std::span<LateRow> on_device = arrays.Put(rows);
    CopyLate(on_device, stream);
  }

 private:
  struct Key {
    size_t at;
    const std::byte* from;
    size_t bytes;
  };
  template <class T>
  static LateRow RowOf(std::span<T> to, std::span<const T> from) {
    return {.to = reinterpret_cast<std::byte*>(to.data()),
            .from = reinterpret_cast<const std::byte*>(from.data()),
            .bytes = to.size_bytes()};
  }

  std::vector<std::byte> pool_;
  std::vector<Key> keys_;
  std::span<Bf16> q_;
};

// Plans on the host and runs cuda::MlaAttention, with guards around every output.
inline testing::AttentionResult RunMlaOnDevice(const testing::PagedBatch& batch,
                                               const MlaDeviceRun& run) {
  const testing::PagedBatchShape& shape = batch.shape();
  const MlaShape mla{.num_heads = shape.num_heads, .dims = shape.dims};
  const StepCapacity capacity = run.capacity != nullptr ? *run.capacity : batch.Capacity();
  WorkShape work = MlaWorkShape(mla, {.num_sms = run.num_workers}, run.step, run.exact);
  if (run.kernel == MlaKernel::kFewRows) {
    work.query_tile = TokenCount(1);
  }
  if (run.tile_tokens > TokenCount(0)) work.query_tile = run.tile_tokens;
  if (run.split > TokenCount(0)) work.split = run.split;
  if (run.cut_cost >= 0) work.cut_cost = run.cut_cost;
  work.num_workers = run.num_workers;
  work.ctas = run.ctas;
  work.enough_workers = 0;  // so that tiles are cut
  SerialExecutor executor;
  PlanStorage storage(capacity, work);
  const Plan* const host_plan = &storage.Make(batch.seqs(), executor, run.faults);
  const PlanCopy plan(*host_plan);
  Stream stream;
  stream.set_overlaps(run.overlaps || run.is_behind_late_rows);
  DeviceArrays arrays;
  const std::span<std::byte> pool = arrays.Put(std::span<const std::byte>(batch.pool()));
  const KvStore store(pool, batch.pool_pages(), batch.store().layout(), run.faults);
  const int64_t tokens = batch.num_tokens(), heads = shape.num_heads;
  const size_t rows = static_cast<size_t>(tokens * heads);
  const GuardedArray<float> out(arrays, rows * static_cast<size_t>(shape.dims.latent_dim));
  const GuardedArray<Bf16> narrow(arrays, rows * static_cast<size_t>(shape.dims.latent_dim));
  const GuardedArray<float> lse(arrays, rows);
  const GuardedArray<std::byte> workspace(
      arrays, static_cast<size_t>(MlaAttentionWorkspace(capacity, work, mla).raw()));
  MlaAttentionArgs args{.plan = plan.plan(),
                        .store = store,
                        .out = {out.data(), {tokens, heads, shape.dims.latent_dim}},
                        .lse = {lse.data(), {tokens, heads}},
                        .scale = testing::kScale,
                        .workspace = workspace.span()};
  if (run.bf16_out) args.out = {narrow.data(), {tokens, heads, shape.dims.latent_dim}};
  const std::span<Bf16> narrow_q = arrays.Put(AllToBf16(batch.q()));
  args.q = {narrow_q.data(), {tokens, heads, shape.dims.values()}};
  if (run.kernel == MlaKernel::kPlain) {
    args.q = {arrays.Put(batch.q()).data(), {tokens, heads, shape.dims.values()}};
  }
  std::optional<LateRows> late;
  if (run.is_behind_late_rows) late.emplace(batch, *host_plan, arrays);
  for (int i = 0; i < run.repeats; ++i) {
    if (late.has_value()) late->Begin(pool, narrow_q, out.span(), arrays, stream);
    MlaAttention(args, run.kernel, stream, run.status);
  }
  (void)workspace.Values(stream);  // its guards
  testing::AttentionResult result{.out = out.Values(stream), .lse = lse.Values(stream)};
  if (run.bf16_out) {
    result.out.clear();
    for (Bf16 value : narrow.Values(stream)) result.out.push_back(ToFloat(value));
  }
  return result;
}

// The rows of `tokens` consecutive query tokens, from token `first` on.
inline testing::AttentionResult Tokens(const testing::AttentionResult& result,
                                       const testing::PagedBatchShape& shape, int64_t first,
                                       int64_t tokens) {
  const int64_t per_token = int64_t{shape.num_heads} * shape.dims.latent_dim;
  return {.out = {result.out.begin() + first * per_token,
                  result.out.begin() + (first + tokens) * per_token},
          .lse = {result.lse.begin() + first * shape.num_heads,
                  result.lse.begin() + (first + tokens) * shape.num_heads}};
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_TESTING_H_
