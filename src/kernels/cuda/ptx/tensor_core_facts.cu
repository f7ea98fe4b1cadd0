#include <cstddef>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/tensor_core_facts.h"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace {

enum class Narrow { kBf16, kF16, kE4m3 };

constexpr int kStepBytes = 32;                         // of a product: 16 values, or 32 of e4m3
constexpr int kPanelRowBytes = 128;                    // four of them
constexpr uint32_t kPanelBytes = 64 * kPanelRowBytes;  // of 64 rows

constexpr int BytesOf(Narrow narrow) { return narrow == Narrow::kE4m3 ? 1 : 2; }

// Of this CTA's tile of `width` columns: the last one of a row may begin within the one before it.
__device__ int FirstColumn(int width, const ChainArgs& args) {
  return min(width * static_cast<int>(blockIdx.y), args.num_columns - width);
}

// Where a thread's sum[i] lies in a tile of `num_columns`-wide rows.
__device__ int PlaceOfSum(int i, int num_columns) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
  return row * num_columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

template <int kSums>
__device__ void Begin(float (&sum)[kSums], const ChainArgs& args, int tile) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sum[i] = args.start == nullptr ? 0.0f : args.start[tile + PlaceOfSum(i, args.num_columns)];
  }
}

template <int kSums>
__device__ void End(const float (&sum)[kSums], const ChainArgs& args, int tile) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) args.sums[tile + PlaceOfSum(i, args.num_columns)] = sum[i];
}

// Of 16 bits.
__device__ const uint16_t* Values(const std::byte* bytes) {
  return reinterpret_cast<const uint16_t*>(bytes);
}

// Two neighbours.
__device__ uint32_t Pair(const uint16_t* values) {
  return *reinterpret_cast<const uint32_t*>(values);
}

// A warp's 16 x 16 part of a, at its upper left corner.
__device__ void LoadA(uint32_t (&a)[4], const uint16_t* corner, int k) {
  const int lane = threadIdx.x % 32;
  const uint16_t* mine = corner + lane / 4 * k + lane % 4 * 2;
  a[0] = Pair(mine);
  a[1] = Pair(mine + 8 * k);
  a[2] = Pair(mine + 8);
  a[3] = Pair(mine + 8 * k + 8);
}

template <Narrow kNarrow>
__global__ void __launch_bounds__(32) WarpKernel(ChainArgs args) {
  const int row = 16 * blockIdx.x, column = 8 * blockIdx.y;
  const int tile = row * args.num_columns + column, lane = threadIdx.x;
  float sum[4];
  Begin(sum, args, tile);
  for (int from = 0; from < args.k; from += 16) {
    uint32_t a[4];
    LoadA(a, Values(args.a) + row * args.k + from, args.k);
    const uint16_t* b = Values(args.b) + (column + lane / 4) * args.k + from + lane % 4 * 2;
    if constexpr (kNarrow == Narrow::kBf16) {
      MultiplyBf16(sum, a, Pair(b), Pair(b + 8));
    } else {
      MultiplyF16(sum, a, Pair(b), Pair(b + 8));
    }
  }
  End(sum, args, tile);
}

// `width` bytes of each row into a panel.
__device__ void FillPanel(std::byte* panel, const std::byte* values, int num_rows, int row_bytes,
                          int width) {
  const int chunks = width / 16;
  for (int i = threadIdx.x; i < num_rows * chunks; i += kWarpgroup) {
    const int row = i / chunks, chunk = i % chunks;
    *reinterpret_cast<uint4*>(panel + PanelChunk(row, chunk)) =
        *reinterpret_cast<const uint4*>(values + row * row_bytes + chunk * 16);
  }
}

// kSteps products that follow each other without a wait. `adds`: the first adds to the sum.
template <Narrow kNarrow, int kSteps, int kSums>
__device__ void MultiplySteps(float (&sum)[kSums], uint32_t a, uint32_t b, bool adds) {
  HoldSums(sum);
  BeginProducts();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t a_here = PanelOperand(a + step * kStepBytes);
    const uint64_t b_here = PanelOperand(b + step * kStepBytes);
    if constexpr (kNarrow == Narrow::kBf16) {
      MultiplyPanels(sum, a_here, b_here, adds || step > 0);
    } else if constexpr (kNarrow == Narrow::kF16) {
      MultiplyPanelsF16(sum, a_here, b_here, adds || step > 0);
    } else {
      MultiplyCodes(sum, a_here, b_here, adds || step > 0);
    }
  }
  CommitProducts();
  WaitForProducts<0>();
  HoldSums(sum);
}

template <int kColumns, Narrow kNarrow>
__global__ void __launch_bounds__(kWarpgroup) PanelsKernel(ChainArgs args) {
  std::byte *const a = LaunchedShared<1024>(), *const b = a + kPanelBytes;
  const int row = 64 * blockIdx.x, column = FirstColumn(kColumns, args);
  const int tile = row * args.num_columns + column;
  float sum[kColumns / 2];
  Begin(sum, args, tile);
  bool adds = args.start != nullptr;
  const int row_bytes = args.k * BytesOf(kNarrow);
  for (int from = 0; from < row_bytes; from += kPanelRowBytes) {
    const int width = min(kPanelRowBytes, row_bytes - from);
    FillPanel(a, args.a + row * row_bytes + from, 64, row_bytes, width);
    FillPanel(b, args.b + column * row_bytes + from, kColumns, row_bytes, width);
    FenceForProducts();
    __syncthreads();
    if (width == kPanelRowBytes) {
      MultiplySteps<kNarrow, 4>(sum, SharedAddress(a), SharedAddress(b), adds);
      adds = true;
    } else {
      for (int at = 0; at < width; at += kStepBytes) {
        MultiplySteps<kNarrow, 1>(sum, SharedAddress(a) + at, SharedAddress(b) + at, adds);
        adds = true;
      }
    }
    __syncthreads();  // the panels have been read
  }
  End(sum, args, tile);
}

__global__ void __launch_bounds__(kWarpgroup) RowsKernel(ChainArgs args) {
  constexpr int kColumns = 256;
  std::byte* const b = LaunchedShared<1024>();  // rows of k
  const int row = 64 * blockIdx.x, column = kColumns * blockIdx.y;
  const int tile = row * args.num_columns + column, warp = threadIdx.x / 32;
  float sum[kColumns / 2];
  Begin(sum, args, tile);
  for (int from = 0; from < args.k; from += 16) {
    for (int i = threadIdx.x; i < 16 * kColumns; i += kWarpgroup) {
      const int k = i / kColumns, n = i % kColumns;
      std::byte* chunk = b + n / 64 * kPanelBytes + PanelChunk(k, n % 64 / 8);
      reinterpret_cast<uint16_t*>(chunk)[n % 8] = Values(args.b)[(column + n) * args.k + from + k];
    }
    FenceForProducts();
    __syncthreads();
    uint32_t a[4];
    LoadA(a, Values(args.a) + (row + 16 * warp) * args.k + from, args.k);
    HoldSums(sum);
    BeginProducts();
    MultiplyRows(sum, a, PanelOperand(SharedAddress(b), 0, kPanelBytes));
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(sum);
    __syncthreads();  // the panels have been read
  }
  End(sum, args, tile);
}

void Launch(void (*kernel)(ChainArgs), int rows, int columns, int threads, const ChainArgs& args,
            const Stream& stream) {
  const dim3 tiles(args.num_rows / rows, CeilDiv(args.num_columns, columns));
  // Panels of 64 rows of a and of b's, each up to 128 bytes wide.
  const size_t shared_bytes = kPanelBytes + static_cast<size_t>(kPanelRowBytes) * columns;
  LaunchInTurn(
      "multiply_chain", kernel,
      {.grid = tiles, .block = dim3(static_cast<unsigned>(threads)), .shared_bytes = shared_bytes},
      stream, args);
}

}  // namespace

void MultiplyChain(Product product, const ChainArgs& args, const Stream& stream) {
  const int step = product >= Product::kCodes8 ? 32 : 16;
  Require(args.num_rows % 64 == 0 && args.num_columns % 256 == 0 && args.k % step == 0,
          "multiply_chain: expected multiples of 64, 256 and {}, got {}, {} and {}", step,
          args.num_rows, args.num_columns, args.k);
  constexpr Narrow kBf16 = Narrow::kBf16, kF16 = Narrow::kF16, kE4m3 = Narrow::kE4m3;
  switch (product) {
    case Product::kWarp:
      return Launch(WarpKernel<kBf16>, 16, 8, 32, args, stream);
    case Product::kWarpF16:
      return Launch(WarpKernel<kF16>, 16, 8, 32, args, stream);
    case Product::kPanels8:
      return Launch(PanelsKernel<8, kBf16>, 64, 8, kWarpgroup, args, stream);
    case Product::kPanels8F16:
      return Launch(PanelsKernel<8, kF16>, 64, 8, kWarpgroup, args, stream);
    case Product::kPanels16:
      return Launch(PanelsKernel<16, kBf16>, 64, 16, kWarpgroup, args, stream);
    case Product::kPanels32:
      return Launch(PanelsKernel<32, kBf16>, 64, 32, kWarpgroup, args, stream);
    case Product::kPanels64:
      return Launch(PanelsKernel<64, kBf16>, 64, 64, kWarpgroup, args, stream);
    case Product::kPanels128:
      return Launch(PanelsKernel<128, kBf16>, 64, 128, kWarpgroup, args, stream);
    case Product::kPanels256:
      return Launch(PanelsKernel<256, kBf16>, 64, 256, kWarpgroup, args, stream);
    case Product::kCodes8:
      return Launch(PanelsKernel<8, kE4m3>, 64, 8, kWarpgroup, args, stream);
    case Product::kCodes16:
      return Launch(PanelsKernel<16, kE4m3>, 64, 16, kWarpgroup, args, stream);
    case Product::kCodes64:
      return Launch(PanelsKernel<64, kE4m3>, 64, 64, kWarpgroup, args, stream);
    case Product::kCodes128:
      return Launch(PanelsKernel<128, kE4m3>, 64, 128, kWarpgroup, args, stream);
    case Product::kCodes192:
      return Launch(PanelsKernel<192, kE4m3>, 64, 192, kWarpgroup, args, stream);
    case Product::kRows256:
      return Launch(RowsKernel, 64, 256, kWarpgroup, args, stream);
  }
}

}  // namespace quire::cuda
