#include "kernels/cuda/gemm/gemv.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemv_rows.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/cuda/row_ops/row_ops_rope.cuh"

namespace quire::cuda {
namespace {

constexpr int kGemvThreads = 256;
constexpr int kWarps = kGemvThreads / 32;

struct GemvParams {
  Rows<const Bf16> x;
  Rows<const Bf16> w;
  const float* bias;  // or null
  int32_t rows, outputs, inputs;
  int32_t count;                   // products
  int64_t x_step, w_step, y_step;  // from one to the next, in values
};

// ---- Few outputs: a CTA has one, two or four ----

// kRows >= rows: those past the last one are computed like it and not written, and so are outputs.
template <int kRows, int kOutputs, class TY>
__global__ void __launch_bounds__(kGemvThreads) GemvKernel(const GemvParams p, Rows<TY> y) {
  __shared__ float parts[kWarps][kOutputs * kRows];
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = ReadOncePolicy();
  uint4 next[kOutputs];  // groups of w, as they lie in memory
  const auto load_w = [&](int k) {
    if (k >= p.inputs) return;
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      next[n] = LoadConst16(p.w[min(first + n, p.outputs - 1)] + k, policy);
    }
  };
  int k = static_cast<int>(threadIdx.x) * kGroup;
  load_w(k);  // nobody writes weights
  TakeTurn();
  float sums[kOutputs][kRows] = {};
  while (k < p.inputs) {
    float w[kOutputs][kGroup];
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) Widen(next[n], w[n]);
    load_w(k + kGemvThreads * kGroup);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      float x[kGroup];
      LoadWhole(p.x[min(t, p.rows - 1)] + k, x);
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) sums[n][t] = __fmaf_rn(x[i], w[n][i], sums[n][t]);
      }
    }
    k += kGemvThreads * kGroup;
  }
#pragma unroll
  for (int n = 0; n < kOutputs; ++n) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      float sum = sums[n][t];
#pragma unroll
      for (int half = 16; half >= 1; half /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
      }
      if (lane == 0) parts[warp][n * kRows + t] = sum;
    }
  }
  __syncthreads();  // every warp's sums are there before one of them is read
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= kOutputs * kRows) return;
  const int output = first + mine / kRows, row = mine % kRows;
  if (output >= p.outputs || row >= p.rows) return;
  float sum = parts[0][mine];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum = __fadd_rn(sum, parts[i][mine]);
  if (p.bias != nullptr) sum = __fadd_rn(sum, p.bias[output]);
  StoreValue(sum, y[row] + output);
}

template <int kRows, int kOutputs>
void LaunchGemv(const GemvParams& p, const TensorView& y, const Stream& stream) {
  const auto grid = static_cast<unsigned>(CeilDiv(p.outputs, kOutputs));
  if (y.dtype() == DType::kF32) {
    LaunchAhead("gemv", GemvKernel<kRows, kOutputs, float>, {grid, kGemvThreads}, stream, p,
                RowsOf<float>(y));
  } else {
    LaunchAhead("gemv", GemvKernel<kRows, kOutputs, Bf16>, {grid, kGemvThreads}, stream, p,
                RowsOf<Bf16>(y));
  }
}

// An output per CTA as long as that is a multiprocessor for each; x is read once per CTA.
template <int kRows>
void LaunchFewOutputs(const GemvParams& p, const TensorView& y, const Stream& stream) {
  if (p.outputs <= kMultiprocessors) return LaunchGemv<kRows, 1>(p, y, stream);
  if (p.outputs <= 2 * kMultiprocessors) return LaunchGemv<kRows, 2>(p, y, stream);
  LaunchGemv<kRows, 4>(p, y, stream);
}

// ---- Many outputs: a warp has one at a time ----

// Heads of one row that warps rotate beside their products; none with num_heads 0.
struct RowRotation {
  Heads<const Bf16> x;
  Heads<Bf16> y;
  const float *cos, *sin;
  RopePairs pairs;
  int32_t num_heads, num_pairs;
};

// The last warps have a head each: where items do not come out even, those have fewer.
__device__ inline void RotateHeads(const RowRotation& rotation, int thread) {
  const int ctas = static_cast<int>(gridDim.x);
  const int last = kStreamWarps * ctas - 1 - (thread / 32 * ctas + static_cast<int>(blockIdx.x));
#pragma unroll 1
  for (int head = last; head < rotation.num_heads; head += kStreamWarps * ctas) {
    RotateHead(thread % 32, rotation.x.At(0, head), rotation.cos, rotation.sin, rotation.pairs,
               rotation.num_pairs, rotation.y.At(0, head));
  }
}

// kRows is rows. Of one row, four CTAs of a multiprocessor: the next product's two are placed beside those of this.
template <int kRows, class TY>
__global__ void __launch_bounds__(kStreamThreads, kRows == 1 ? 4 : 2)
    GemvStreamKernel(const GemvParams p, Rows<TY> y, const RowRotation rotation) {
  auto* const shared = reinterpret_cast<unsigned char*>(LaunchedShared<128>());
  const auto w = [&](const Items& at, int) {
    return reinterpret_cast<const std::byte*>(p.w[at.minor()] + at.major() * p.w_step);
  };
  const int thread = HeldThread();
  Items items(thread, p.count, p.outputs);
  RowStream<1, decltype(w)> stream(thread, shared, items, p.inputs, w);
  TakeTurn();  // nobody writes weights
  if constexpr (kRows == 1) RotateHeads(rotation, thread);
  for (; items.There(); items.Next()) {
    const int64_t product = items.major();
    const int output = items.minor();
    float sums[1][kRows][kLaneSums<decltype(stream)>] = {};
    const Bf16* x[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t) x[t] = p.x[t] + product * p.x_step;
    MultiplyItem(thread % 32, stream, p.inputs, x, sums);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      float sum = SumOfWarp(sums[0][t]);
      if (p.bias != nullptr) sum = __fadd_rn(sum, p.bias[output]);
      if (thread % 32 == 0) StoreValue(sum, y[t] + product * p.y_step + output);
    }
  }
}

// Rows of one step are all asked for at once, where twice as many CTAs can.
unsigned StreamCtas(const GemvParams& p) {
  if (p.inputs > kStepGroups * kSpan) return kStreamCtas;
  const int64_t ctas = CeilDiv(int64_t{p.count} * p.outputs, int64_t{kStreamWarps} * kStreamSteps);
  return static_cast<unsigned>(std::clamp<int64_t>(ctas, kStreamCtas, 2 * kStreamCtas));
}

template <int kRows, class TY>
void LaunchStream(const GemvParams& p, const TensorView& y, const Stream& stream,
                  const RowRotation& rotation = {}) {
  const auto kernel = GemvStreamKernel<kRows, TY>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStreamBytes),
        "gemv: shared memory");
  LaunchAhead("gemv", kernel,
              {.grid = StreamCtas(p), .block = kStreamThreads, .shared_bytes = kStreamBytes},
              stream, p, RowsOf<TY>(y), rotation);
}

template <int kRows>
void LaunchManyOutputs(const GemvParams& p, const TensorView& y, const Stream& stream) {
  if (y.dtype() == DType::kF32) return LaunchStream<kRows, float>(p, y, stream);
  LaunchStream<kRows, Bf16>(p, y, stream);
}

// ---- Choosing ----

bool IsFew(int64_t rows, int64_t outputs, int64_t count) {
  if (rows < 1) return false;
  if (count > 1) return rows == 1 && count * outputs <= kMaxGemvOutputsOfFew;
  return (rows <= kMaxGemvRows && outputs <= kMaxGemvOutputs) ||
         (rows <= kFewGemvRows && outputs <= kMaxGemvOutputsOfFew);
}

// A warp has one at a time.
bool HasManyOutputs(const GemmArgs& args) {
  return args.w.count > 1 || args.w.shape.outputs > kMaxGemvOutputs;
}

GemvParams ParamsOf(const GemmArgs& args) {
  Validate(args);
  Require(GemvTakes(args),
          "gemv: expected 1..{} aligned rows and 1..{} outputs of one bf16 matrix, or 1..{} and "
          "1..{} of all, got {} and {} times {}",
          kMaxGemvRows, kMaxGemvOutputs, kFewGemvRows, kMaxGemvOutputsOfFew, args.y.dim(0),
          args.w.count, args.w.shape.outputs);
  return {.x = RowsOf<const Bf16>(args.x),
          .w = {.data = reinterpret_cast<const Bf16*>(args.w.data), .stride = args.w.row_stride},
          .bias = args.bias,
          .rows = static_cast<int32_t>(args.y.dim(0)),
          .outputs = static_cast<int32_t>(args.w.shape.outputs),
          .inputs = static_cast<int32_t>(args.w.shape.inputs),
          .count = static_cast<int32_t>(args.w.count),
          .x_step = args.x_step,
          .w_step = args.w.matrix_stride,
          .y_step = args.y_step};
}

}  // namespace

bool GemvTakes(const GemmArgs& args) {
  const WeightView& w = args.w;
  return args.up.empty() && w.format == WeightFormat::kBf16 &&
         IsFew(args.y.dim(0), w.shape.outputs, w.count) && w.shape.inputs % kGroup == 0 &&
         InWholeGroups(FirstByte(args.x), 2 * args.x.stride(0)) &&
         InWholeGroups(w.data, 2 * w.row_stride) &&
         (w.count == 1 || (args.x_step % kGroup == 0 && w.matrix_stride % kGroup == 0));
}

bool GemvRotates(const GemmArgs& args, const RopeArgs& rope) {
  return HasManyOutputs(args) && args.y.dim(0) == 1 && args.y.dtype() == DType::kBf16 &&
         rope.x.dim(0) == 1 && rope.x.dtype() == DType::kBf16 && rope.y.dtype() == DType::kBf16;
}

void GemvAndRope(const GemmArgs& args, const RopeArgs& rope, const Stream& stream) {
  Require(GemvRotates(args, rope), "gemv: expected a row of bf16 heads to rotate");
  Validate(rope);
  LaunchStream<1, Bf16>(ParamsOf(args), args.y, stream,
                        {.x = HeadsOf<const Bf16>(rope.x),
                         .y = HeadsOf<Bf16>(rope.y),
                         .cos = rope.cos.Address<float>(),
                         .sin = rope.sin.Address<float>(),
                         .pairs = rope.pairs,
                         .num_heads = static_cast<int32_t>(rope.x.dim(1)),
                         .num_pairs = static_cast<int32_t>(rope.x.dim(2) / 2)});
}

void Gemv(const GemmArgs& args, const Stream& stream) {
  const GemvParams p = ParamsOf(args);
  if (HasManyOutputs(args)) {
    if (p.rows == 1) return LaunchManyOutputs<1>(p, args.y, stream);
    return LaunchManyOutputs<2>(p, args.y, stream);
  }
  if (p.rows == 1) return LaunchFewOutputs<1>(p, args.y, stream);
  if (p.rows == 2) return LaunchFewOutputs<2>(p, args.y, stream);
  if (p.rows <= 4) return LaunchFewOutputs<4>(p, args.y, stream);
  LaunchFewOutputs<8>(p, args.y, stream);
}

}  // namespace quire::cuda
