#include "kernels/cuda/moe/expert_gemv.h"

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/gemm/gemm_store.cuh"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/moe/expert_gemv_rows.cuh"

namespace quire::cuda {
namespace {

// More than its rings take: two CTAs then fill a multiprocessor, and those of the next product are placed when these
// leave. Placed beside them, where they wait and others find no room, they made a step of V2-Lite 1 to 5% longer with one
// sequence and 9 to 18% with two.
constexpr int kExpertSharedBytes = 100 * 1000;

// The expert of every row that has one, and its row of x. Rows of experts follow each other.
struct RoutedRows {
  int32_t expert[kMaxExpertGemvRows];
  int32_t x[kMaxExpertGemvRows];
};

// All threads call it; returns the rows that there are. Loads are where they stand: what was there before this
// kernel began may be in a cache.
__device__ RowRange FindRoutedRows(const TileParams& p, RoutedRows& rows) {
  const auto offset = [&](int e) {
    const auto at = LoadHere<int32_t>(reinterpret_cast<const std::byte*>(p.offsets + e));
    return min(max(at, 0), p.rows);
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int first = offset(0);
  const RowRange all = {first, max(offset(p.num_experts), first)};
  if (thread < kMaxExpertGemvRows) {
    rows.expert[thread] = 0;  // where offsets descend, no expert may have a row
    rows.x[thread] = thread;
    if (p.x_index != nullptr && thread >= all.begin && thread < all.end) {
      const auto x = LoadHere<int32_t>(reinterpret_cast<const std::byte*>(p.x_index + thread));
      const bool there = x >= 0 && x < p.x_rows;
      rows.x[thread] = there ? x : 0;
      if (!there && blockIdx.x == 0) {
        Report(p.status, DeviceFault::kExpert, Launch::kGemm, static_cast<uint32_t>(thread));
      }
    }
  }
  __syncthreads();  // every row has expert 0 before one gets its own
  for (int e = thread; e < p.num_experts; e += kGemvThreads) {
    const int begin = offset(e), end = offset(e + 1);
    for (int row = begin; row < end; ++row) rows.expert[row] = e;
  }
  __syncthreads();  // every row's expert is there before one is looked up
  return all;
}

__device__ void StoreOutput(const TileParams& p, int row, int output, float value) {
  const int64_t at = row * p.y_stride + output;
  if (p.y_is_f32) {
    StoreValue(value, reinterpret_cast<float*>(p.y) + at);
  } else {
    StoreValue(value, reinterpret_cast<Bf16*>(p.y) + at);
  }
}

// An item is an output of a row. The warps of a launch take them in turn, those of one CTA far apart, so that few items are
// on many multiprocessors. The rows of one output follow each other, so that rows of one expert read its weights at one
// time. Half of the registers are left to the shared expert's CTAs.
template <bool kGated>
__global__ void __launch_bounds__(kGemvThreads, 4)
    ExpertGemvKernel(const __grid_constant__ TileParams p, RoutingAge age) {
  auto* const shared = reinterpret_cast<unsigned char*>(LaunchedShared<128>());
  __shared__ RoutedRows rows;
  constexpr int kMatrices = kGated ? 2 : 1;
  if (age == RoutingAge::kNew) TakeTurn();
  const RowRange all = FindRoutedRows(p, rows);
  const auto w = [&](const Items& at, int matrix) {
    const int64_t expert = rows.expert[all.begin + at.minor()];
    return p.w[matrix] + expert * p.w_batch_bytes + at.major() * p.w_row_bytes;
  };
  const int thread = HeldThread();
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  Items items(thread / 32 * ctas + cta, kGemvWarps * ctas, p.outputs, all.end - all.begin);
  RowStream<kMatrices, decltype(w)> stream(thread, shared, items, p.inputs, w);
  if (age == RoutingAge::kOld) TakeTurn();
  if (blockIdx.x == 0) ReportBadOffsets(p, kGemvThreads);
  for (; items.There(); items.Next()) {
    const int row = all.begin + items.minor();
    const auto* x = reinterpret_cast<const Bf16*>(p.x + rows.x[row] * p.x_row_bytes);
    float sums[kMatrices][kLaneSums<decltype(stream)>] = {};
    MultiplyItem(thread % 32, stream, p.inputs, x, sums);
    float value = SumOfWarp(sums[0]);
    if constexpr (kGated) value = SiluByReciprocal(value) * SumOfWarp(sums[1]);
    if (thread % 32 == 0) StoreOutput(p, row, items.major(), value);
  }
}

template <bool kGated>
void LaunchProduct(const TileParams& p, RoutingAge age, const Stream& stream) {
  const auto kernel = ExpertGemvKernel<kGated>;
  Check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kExpertSharedBytes),
      "expert gemv: shared memory");
  LaunchAhead("expert gemv", kernel,
              {.grid = kGemvCtas, .block = kGemvThreads, .shared_bytes = kExpertSharedBytes},
              stream, p, age);
}

}  // namespace

bool ExpertGemvTakes(const TileParams& p) {
  return p.rows <= kMaxExpertGemvRows && p.inputs % kGroup == 0 &&
         InWholeGroups(p.x, p.x_row_bytes) &&
         InWholeGroups(p.w[0], p.w_row_bytes, p.w_batch_bytes) &&
         InWholeGroups(p.w[1], p.w_row_bytes, p.w_batch_bytes) &&
         int64_t{p.rows} * p.outputs < INT32_MAX / 2;
}

void LaunchExpertGemv(const TileParams& p, RoutingAge age, const Stream& stream) {
  QUIRE_CHECK(ExpertGemvTakes(p), "{} rows of {} inputs for experts' gemv", p.rows, p.inputs);
  if (p.gated) return LaunchProduct<true>(p, age, stream);
  LaunchProduct<false>(p, age, stream);
}

}  // namespace quire::cuda
