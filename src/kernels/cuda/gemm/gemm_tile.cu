#include "kernels/cuda/gemm/gemm_tile.h"

#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_decode.h"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/gemm/gemm_warpgroup.h"

namespace quire::cuda {
namespace {

template <class T, TileLoads kLoads, bool kIndexed>
__global__ void __launch_bounds__(T::kThreads, T::kMinCtas)
    TileKernel(const __grid_constant__ TileParams p) {
  auto* const shared = reinterpret_cast<unsigned char*>(LaunchedShared<1024>());
  // Where experts' rows are, others have written; weights of dense products nobody writes.
  const bool is_dense = p.offsets == nullptr;
  if (!is_dense) TakeTurn();
  const TilePlace at = FindPlace<T>(p);
  if (at.row >= at.row_end) return;  // a row tile that this step's rows do not fill
  const WarpPlace<T> warp;
  const TileLoader<T, kLoads, kIndexed> loader(p, at);
  // Of this thread's sums; read with kFp8 only, whose rows have scales.
  const XRows<2 * T::kRowFragments, 8, kIndexed> sum_rows(p, at.row + warp.row + (warp.lane >> 2),
                                                          at.row_end, /*reports=*/false);
  const uint32_t stages = SharedAddress(shared);
  const int begin = at.split * p.split_inputs;
  const int end = min(p.inputs, begin + p.split_inputs);
  const int num_steps = max(0, end - begin + T::kInputs - 1) / T::kInputs;
  const auto load_w = [&](int step) {
    if (step >= num_steps) return;
    loader.LoadW(stages + step % T::kStages * T::kStageBytes, begin + step * T::kInputs, end);
  };
  const auto load_x = [&](int step) {
    if (step < num_steps) {
      loader.LoadX(stages + step % T::kStages * T::kStageBytes, begin + step * T::kInputs, end);
    }
    CommitCopies();  // empty groups too, so that group number and step stay in line
  };

  Sums<T> sums = {}, total = {};
  for (int step = 0; step < T::kStages - 1; ++step) load_w(step);
  if (is_dense) TakeTurn();
  for (int step = 0; step < T::kStages - 1; ++step) load_x(step);
  for (int step = 0; step < num_steps; ++step) {
    WaitForCopies<T::kStages - 2>();  // this thread's copies of `step` have landed
    if constexpr (T::kIsWarpgroup) FenceForProducts();
    // And every thread's; and all threads are done with the stage of step - 1, loaded next.
    __syncthreads();
    load_w(step + T::kStages - 1);
    load_x(step + T::kStages - 1);
    const uint32_t stage = stages + step % T::kStages * T::kStageBytes;
    if constexpr (T::kMath == TileMath::kBf16) {
      MultiplyStep<T>(stage, warp, total);
    } else {
      const ChunkScales<T> scales(p, at, sum_rows, begin / T::kInputs + step);
      MultiplyStep<T>(stage, warp, sums);
      FoldChunk<T>(scales, sums, total);
    }
  }
  if (p.num_splits == 1) {
    StoreSums<T>(p, at, warp, total);
    return;
  }
  WaitForCopies<0>();
  __syncthreads();  // the last stage has been read: its memory holds sums from here on
  StoreSplitSums<T>(p, at, warp, total, reinterpret_cast<float*>(shared));
}

template <class T, TileLoads kLoads, bool kIndexed>
void LaunchKernel(const TileParams& p, const Stream& stream) {
  const auto kernel = TileKernel<T, kLoads, kIndexed>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes),
        "gemm: shared memory of a tile");
  const int64_t tile_outputs = p.gated ? T::kOutputs / 2 : T::kOutputs;
  const int64_t row_tiles = p.offsets != nullptr ? MaxRowTiles(p.rows, p.num_experts, T::kRows)
                                                 : CeilDiv(int64_t{p.rows}, int64_t{T::kRows});
  const int64_t columns = CeilDiv(int64_t{p.outputs}, tile_outputs);
  LaunchAhead("gemm: launch of the tile kernel", kernel,
              {.grid = dim3(static_cast<unsigned>(columns * p.num_splits),
                            static_cast<unsigned>(row_tiles), static_cast<unsigned>(p.num_batches)),
               .block = dim3(T::kThreads),
               .shared_bytes = T::kSharedBytes,
               .cluster = static_cast<unsigned>(p.num_splits)},
              stream, p);
}

template <class T, TileLoads kLoads>
void Launch(const TileParams& p, const Stream& stream) {
  if (p.x_index == nullptr) return LaunchKernel<T, kLoads, false>(p, stream);
  LaunchKernel<T, kLoads, true>(p, stream);
}

template <TileMath kMath>
void LaunchSize(const TileParams& p, const TileChoice& tile, const Stream& stream) {
  if (tile.loads == TileLoads::kUnaligned) {
    return Launch<Tile<kMath, TileSize::kMedium>, TileLoads::kUnaligned>(p, stream);
  }
  switch (tile.size) {
    case TileSize::kDecode:
      return Launch<Tile<kMath, TileSize::kDecode>, TileLoads::kAligned>(p, stream);
    case TileSize::kMedium:
      return Launch<Tile<kMath, TileSize::kMedium>, TileLoads::kAligned>(p, stream);
    case TileSize::kPrefill:
    case TileSize::kPrefillWide:
    case TileSize::kPrefillPair:
    case TileSize::kPrefillWidePair:
      if constexpr (kMath == TileMath::kBf16) {
        return LaunchWarpgroupTiles(p, tile.size, stream);
      } else {
        return Launch<Tile<kMath, TileSize::kPrefill>, TileLoads::kAligned>(p, stream);
      }
  }
}

// Sizes of codes: whatever is chosen, the bits are the same.
void LaunchCodes(const TileParams& p, const TileChoice& tile, const Stream& stream) {
  using Medium = Tile<TileMath::kFp8, TileSize::kMedium>;
  if (tile.loads == TileLoads::kUnaligned) return Launch<Medium, TileLoads::kUnaligned>(p, stream);
  if (IsLarge(tile.size)) return LaunchWarpgroupCodes(p, tile.size, stream);
  Launch<Medium, TileLoads::kAligned>(p, stream);
}

}  // namespace

void LaunchTiles(const TileParams& p, const TileChoice& tile, const Stream& stream) {
  if (p.rows == 0 || p.outputs == 0) return;
  if (DecodeTakes(p, tile)) return LaunchDecodeTiles(p, tile, stream);
  switch (tile.math) {
    case TileMath::kBf16:
      return LaunchSize<TileMath::kBf16>(p, tile, stream);
    case TileMath::kFp8:
      return LaunchCodes(p, tile, stream);
    case TileMath::kFp8KeepX:
      return LaunchSize<TileMath::kFp8KeepX>(p, tile, stream);
  }
}

}  // namespace quire::cuda
