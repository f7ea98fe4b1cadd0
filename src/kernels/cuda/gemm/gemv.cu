#include "kernels/cuda/gemm/gemv.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemv_quads.cuh"
#include "kernels/cuda/gemm/row_rotation.cuh"
#include "kernels/cuda/gemm/row_rotation.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {
namespace {

struct GemvParams {
  Rows<const Bf16> x;
  QuadWeights w;
  const float* bias;  // or null
  int32_t rows;
  int32_t count;           // products
  int64_t x_step, y_step;  // from one to the next, in values
};

// ---- Few outputs: a CTA has one, two or four ----

// kRows >= rows: those past the last one are computed like it and not written, and so are outputs.
template <int kRows, int kOutputs, class TY>
__global__ void __launch_bounds__(kGemvThreads) GemvKernel(const GemvParams p, Rows<TY> y) {
  __shared__ float parts[kGemvWarps][kOutputs * kRows];
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = ReadOncePolicy();
  uint4 next[kOutputs];  // groups of w, as they lie in memory
  const auto load_w = [&](int k) {
    if (k >= p.w.inputs) return;
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      next[n] = LoadConst16(p.w.rows[min(first + n, p.w.outputs - 1)] + k, policy);
    }
  };
  int k = static_cast<int>(threadIdx.x) * kGroup;
  load_w(k);  // nobody writes weights
  TakeTurn();
  float sums[kOutputs][kRows] = {};
  while (k < p.w.inputs) {
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
  if (output >= p.w.outputs || row >= p.rows) return;
  float sum = parts[0][mine];
#pragma unroll
  for (int i = 1; i < kGemvWarps; ++i) sum = __fadd_rn(sum, parts[i][mine]);
  if (p.bias != nullptr) sum = __fadd_rn(sum, p.bias[output]);
  StoreValue(sum, y[row] + output);
}

template <int kRows, int kOutputs>
void LaunchGemv(const GemvParams& p, const TensorView& y, const Stream& stream) {
  const auto grid = static_cast<unsigned>(CeilDiv(p.w.outputs, kOutputs));
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
  if (p.w.outputs <= kMultiprocessors) return LaunchGemv<kRows, 1>(p, y, stream);
  if (p.w.outputs <= 2 * kMultiprocessors) return LaunchGemv<kRows, 2>(p, y, stream);
  LaunchGemv<kRows, 4>(p, y, stream);
}

// ---- Many outputs: quads of them ----

// That a team may have, of so many in a CTA.
constexpr int MostQuads(int teams) {
  return CeilDiv(static_cast<int>(kMaxGemvOutputsOfFew) / kQuad, teams * kGemvCtas);
}

// kRows is rows. Of one row, four CTAs of a multiprocessor: the next product's two are placed beside those of this.
template <int kRows, int kTeam, class TY>
__global__ void __launch_bounds__(kGemvThreads, kRows == 1 ? 4 : 2)
    GemvQuadsKernel(const __grid_constant__ GemvParams p, Rows<TY> y, const RowRotation rotation) {
  constexpr int kTeams = kGemvThreads / kTeam, kTeamWarps = kTeam / 32;
  constexpr int kMostQuads = MostQuads(kTeams);
  __shared__ float parts[kGemvWarps][kMostQuads][kQuad][kRows];
  const int thread = HeldThread();
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int quads_of_one = (p.w.outputs + kQuad - 1) / kQuad;
  Items quads(thread / kTeam * ctas + cta, kTeams * ctas, p.count, quads_of_one);
  QuadStream<kTeam> stream(thread, LaunchedShared<128>(), p.w, quads);
  TakeTurn();  // nobody writes weights
  if constexpr (kRows == 1) {
    RotateHeads(rotation, thread / 32 * ctas + cta, kGemvWarps * ctas, thread % 32);
  }
  const int groups = p.w.inputs / kGroup;
#pragma unroll 1
  for (int n = 0; quads.There(); quads.Next(), ++n) {
    float sums[kRows][kQuad] = {};
#pragma unroll 1  // as in QuadStream
    for (int first = 0; first < groups; first += kTeam) {
      const int group = first + thread % kTeam;
      const bool has = group < groups;
      uint4 x[kRows] = {}, w[kQuad] = {};
#pragma unroll
      for (int t = 0; t < kRows; ++t) {
        const Bf16* row = p.x[t] + quads.major() * p.x_step;
        if (has) x[t] = *reinterpret_cast<const uint4*>(row + group * kGroup);
      }
      stream.Next(w, has);
      if (!has) continue;
      float values[kRows][kGroup];
#pragma unroll
      for (int t = 0; t < kRows; ++t) Widen(x[t], values[t]);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        float factors[kGroup];
        Widen(w[i], factors);
#pragma unroll
        for (int t = 0; t < kRows; ++t) {
#pragma unroll
          for (int j = 0; j < kGroup; ++j) {
            sums[t][i] = __fmaf_rn(values[t][j], factors[j], sums[t][i]);
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const float sum = SumOfQuad(sums[t], thread % 32);
      if (thread % 8 == 0) parts[thread / 32][n][thread % 32 / 8][t] = sum;
    }
  }
  __syncthreads();  // every warp's sums are there before one of them is read
  // Every output of a row has a thread.
  static_assert(kRows * kQuad * kTeams * kMostQuads <= kGemvThreads);
  const int t = thread % kRows, of_quad = thread / kRows % kQuad;
  const int team = thread / (kRows * kQuad) % kTeams, n = thread / (kRows * kQuad * kTeams);
  const int quad = (n * kTeams + team) * ctas + cta;
  if (quad >= p.count * quads_of_one) return;
  const int64_t product = quad / quads_of_one;
  const int output = quad % quads_of_one * kQuad + of_quad;
  if (output >= p.w.outputs) return;
  float sum = parts[team * kTeamWarps][n][of_quad][t];
#pragma unroll
  for (int warp = 1; warp < kTeamWarps; ++warp) {
    sum = __fadd_rn(sum, parts[team * kTeamWarps + warp][n][of_quad][t]);
  }
  if (p.bias != nullptr) sum = __fadd_rn(sum, p.bias[output]);
  StoreValue(sum, y[t] + product * p.y_step + output);
}

// With shared memory for as many steps as a team has: what is small leaves room for the next kernel.
template <int kRows, int kTeam, class TY>
void LaunchQuads(const GemvParams& p, const TensorView& y, const Stream& stream,
                 const RowRotation& rotation) {
  constexpr int kTeams = kGemvThreads / kTeam;
  const int quads = p.count * CeilDiv(p.w.outputs, kQuad);
  const int ctas = std::min(CeilDiv(quads, kTeams), kGemvCtas);
  const int steps = CeilDiv(quads, ctas * kTeams) * CeilDiv(p.w.inputs, kTeam * kGroup);
  const auto kernel = GemvQuadsKernel<kRows, kTeam, TY>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, CopyRing::kBytes),
        "gemv: shared memory");
  LaunchAhead("gemv", kernel,
              {.grid = static_cast<unsigned>(ctas),
               .block = kGemvThreads,
               .shared_bytes =
                   static_cast<size_t>(std::min(steps, CopyRing::kSteps)) * CopyRing::kStepBytes},
              stream, p, RowsOf<TY>(y), rotation);
}

template <int kRows, class TY>
void LaunchTeams(const GemvParams& p, const TensorView& y, const Stream& stream,
                 const RowRotation& rotation = {}) {
  const int groups = p.w.inputs / kGroup;
  (groups <= 32    ? LaunchQuads<kRows, 32, TY>
   : groups <= 64  ? LaunchQuads<kRows, 64, TY>
   : groups <= 128 ? LaunchQuads<kRows, 128, TY>
                   : LaunchQuads<kRows, 256, TY>)(p, y, stream, rotation);
}

template <int kRows>
void LaunchManyOutputs(const GemvParams& p, const TensorView& y, const Stream& stream) {
  if (y.dtype() == DType::kF32) return LaunchTeams<kRows, float>(p, y, stream);
  LaunchTeams<kRows, Bf16>(p, y, stream);
}

// ---- Choosing ----

bool IsFew(int64_t rows, int64_t outputs, int64_t count) {
  if (rows < 1) return false;
  if (count > 1) {
    return rows == 1 && count * RoundUp(outputs, int64_t{kQuad}) <= kMaxGemvOutputsOfFew;
  }
  return (rows <= kMaxGemvRows && outputs <= kMaxGemvOutputs) ||
         (rows <= kFewGemvRows && outputs <= kMaxGemvOutputsOfFew);
}

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
          .w = {.rows = {.data = reinterpret_cast<const Bf16*>(args.w.data),
                         .stride = args.w.row_stride},
                .step = args.w.matrix_stride,
                .outputs = static_cast<int32_t>(args.w.shape.outputs),
                .inputs = static_cast<int32_t>(args.w.shape.inputs)},
          .bias = args.bias,
          .rows = static_cast<int32_t>(args.y.dim(0)),
          .count = static_cast<int32_t>(args.w.count),
          .x_step = args.x_step,
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
         RotatesOneRow(rope);
}

void GemvAndRope(const GemmArgs& args, const RopeArgs& rope, const Stream& stream) {
  Require(GemvRotates(args, rope), "gemv: expected a row of bf16 heads to rotate");
  Validate(rope);
  LaunchTeams<1, Bf16>(ParamsOf(args), args.y, stream, RowRotationOf(rope));
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
