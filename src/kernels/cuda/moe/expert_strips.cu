#include "kernels/cuda/moe/expert_strips.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_strips.cuh"
#include "kernels/cuda/gemm/gemv_items.cuh"
#include "kernels/cuda/moe/routed_rows.cuh"

namespace quire::cuda {
namespace {

// Two CTAs a multiprocessor: V2-Lite's gate and up of six experts are 1056 strips, one for each of their warps.
constexpr int kExpertWarps = 4, kExpertCtas = 2 * kMultiprocessors;
constexpr int kMostExpertBytes = 112 * 1024;  // and each row's expert

// An item is a strip of a row. The rows of one strip follow each other.
__global__ void __launch_bounds__(kExpertWarps* kWarp)
    ExpertStripKernel(const __grid_constant__ TileParams p,
                      const __grid_constant__ StripLayout layout, RoutingAge age) {
  __shared__ RoutedRows rows;
  if (age == RoutingAge::kNew) TakeTurn();
  const RowRange all = FindRoutedRows(p, rows);
  const int thread = HeldThread(), warp = Uniform(thread / kWarp), lane = thread % kWarp;
  const uint32_t ring = SharedAddress(LaunchedShared<128>() + warp * layout.warp_bytes);
  const uint32_t x = ring + static_cast<uint32_t>(layout.ring_bytes);
  Items items(warp * kExpertCtas + static_cast<int>(blockIdx.x), kExpertWarps * kExpertCtas,
              layout.strips, all.end - all.begin);
  // Of an item that there is not, no input.
  const auto place = [&] {
    const bool is_there = items.There();
    return StripPlace{.matrix = is_there ? rows.expert[all.begin + items.minor()] : 0,
                      .first_output = is_there ? items.major() * layout.outputs : 0,
                      .begin = 0,
                      .end = is_there ? p.inputs : 0};
  };
  StripPlace at = place();
  StripWeights weights(p, at, ring, lane);
  if (age == RoutingAge::kOld) TakeTurn();
  if (blockIdx.x == 0) ReportBadOffsets(p, kExpertWarps * kWarp);
  while (items.There()) {
    const int row = all.begin + items.minor();
    BringX<1>(p.x + rows.x[row] * p.x_row_bytes, p.x_row_bytes, 1, at, x, 0, lane);
    float sums[4] = {};
    MultiplyStrip(at, weights, x, 0, 1, lane, sums);
    StoreStrip(p, 0, row, 1, at.first_output, lane, sums);
    items.Next();
    at = place();
    weights = StripWeights(p, at, ring, lane);
  }
}

StripLayout RowLayoutOf(const TileParams& p) {
  TileParams one_row = p;
  one_row.rows = 1;
  return StripLayoutOf(one_row);
}

}  // namespace

bool ExpertStripsTake(const TileParams& p) {
  return AreFewRows(p) && int64_t{kExpertWarps} * RowLayoutOf(p).warp_bytes <= kMostExpertBytes;
}

void LaunchExpertStrips(const TileParams& p, RoutingAge age, const Stream& stream) {
  QUIRE_CHECK(ExpertStripsTake(p), "{} rows of {} inputs for experts' strips", p.rows, p.inputs);
  const StripLayout layout = RowLayoutOf(p);
  const auto bytes = kExpertWarps * layout.warp_bytes;
  Check(cudaFuncSetAttribute(ExpertStripKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kMostExpertBytes),
        "expert strips: shared memory");
  LaunchAhead("expert strips", ExpertStripKernel,
              {.grid = kExpertCtas,
               .block = kExpertWarps * kWarp,
               .shared_bytes = static_cast<size_t>(bytes)},
              stream, p, layout, age);
}

}  // namespace quire::cuda
