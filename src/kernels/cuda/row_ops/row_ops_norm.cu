// The norms: one CTA per row, the row in its registers.
#include <cstdint>
#include <span>

#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/row_ops/row_ops_codes.cuh"
#include "kernels/cuda/row_ops/row_ops_combine.cuh"
#include "kernels/cuda/row_ops/row_ops_launch.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {
namespace {

constexpr int kMaxSumThreads = 1024;
constexpr int kGroupsPerThread = 2;  // kMaxNormWidth / (kMaxSumThreads * kGroup)
static_assert(kMaxNormWidth == int64_t{kMaxSumThreads} * kGroup * kGroupsPerThread);

// A thread's part of a row: kGroupsPerThread, or one where the row has no more for a thread.
template <int kGroups>
using HeldGroups = float[kGroups][kGroup];
using Held = HeldGroups<kGroupsPerThread>;

__device__ int64_t HeldBegin(int i) {
  return (int64_t{threadIdx.x} + int64_t{i} * blockDim.x) * kGroup;
}

// The thread's part of a row; what is past the end of the row is 0.
template <bool kVector, int kGroups, class T>
__device__ void LoadHeld(const T* row, int64_t width, float (&held)[kGroups][kGroup]) {
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    if (HeldBegin(i) < width) LoadGroup<kVector>(row, HeldBegin(i), width, held[i]);
  }
}

// Squares a thread's values, adds them over the CTA and writes the row's norm, and its codes if they are
// wanted. What is past the end of the row is 0 in `held`, and adds nothing. The weights were loaded with
// the row, so that nobody waits for them behind the sum.
template <bool kVector, int kGroups, class T>
__device__ void NormHeld(const float (&held)[kGroups][kGroup],
                         const float (&weight)[kGroups][kGroup], float eps, int64_t row,
                         int64_t width, Rows<T> to, const CodeRows& codes, float scale = 1.0f) {
  __shared__ float scratch[32];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) squares = __fmaf_rn(held[i][j], held[i][j], squares);
  }
  squares = SumOfThreads(squares, scratch);
  const float mean = __fdiv_rn(squares, static_cast<float>(width));
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int64_t begin = HeldBegin(i);
    float v[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      v[j] = __fmul_rn(__fmul_rn(__fmul_rn(held[i][j], factor), weight[i][j]), scale);
    }
    if (begin < width) StoreGroup<kVector>(v, begin, width, to[row]);
    StoreCodes<kVector, T>(v, row, begin, width, codes);
  }
}

template <bool kVector, class TX, class TY>
__global__ void __launch_bounds__(kMaxSumThreads)
    RmsNormKernel(Rows<const TX> x, const float* weight, float eps, int64_t width, Rows<TY> y,
                  float scale, CodeRows codes, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;  // the whole CTA
  Held held = {}, weights = {};
  LoadHeld<kVector>(x[row], width, held);
  LoadHeld<kVector>(weight, width, weights);
  NormHeld<kVector>(held, weights, eps, row, width, y, codes, scale);
}

template <bool kVector, class TU, class TY>
__global__ void __launch_bounds__(kMaxSumThreads)
    AddRmsNormKernel(Rows<float> hidden, Rows<const TU> update, float scale, const float* weight,
                     float eps, int64_t width, Rows<TY> normed, CodeRows codes, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;  // the whole CTA
  Held held = {}, weights = {};
  LoadHeld<kVector>(hidden[row], width, held);
  LoadHeld<kVector>(weight, width, weights);
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    const int64_t begin = HeldBegin(i);
    if (begin >= width) break;
    float more[kGroup];
    LoadGroup<kVector>(update[row], begin, width, more);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) held[i][j] = __fmaf_rn(scale, more[j], held[i][j]);
    StoreGroup<kVector>(held[i], begin, width, hidden[row]);
  }
  NormHeld<kVector>(held, weights, eps, row, width, normed, codes);
}

// How a row of some width is combined and normed: the fewer threads, the more registers each has for
// the rows of choices that are under way.
struct NarrowRow {  // DeepSeek-V2-Lite
  static constexpr int kThreads = 512, kGroups = 1, kRegisters = 32;
};
struct WideRow {  // DeepSeek-V3
  static constexpr int kThreads = 896, kGroups = 1, kRegisters = 16;
};
struct WidestRow {
  static constexpr int kThreads = kMaxSumThreads, kGroups = kGroupsPerThread, kRegisters = 8;
};
template <class Row>
constexpr int64_t kRowWidth = int64_t{Row::kThreads} * Row::kGroups* kGroup;

template <bool kVector, class Row, class TX, class TY>
__global__ void __launch_bounds__(Row::kThreads)
    CombineAddRmsNormKernel(CombineParts<TX> parts, Rows<float> hidden, float scale,
                            const float* weight, float eps, int64_t width, Rows<TY> normed,
                            CodeRows codes, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;  // the whole CTA
  HeldGroups<Row::kGroups> held = {}, weights = {};
  LoadHeld<kVector>(hidden[row], width, held);
  LoadHeld<kVector>(weight, width, weights);
#pragma unroll
  for (int i = 0; i < Row::kGroups; ++i) {
    const int64_t begin = HeldBegin(i);
    if (begin >= width) break;
    float more[kGroup];
    CombineGroup<kVector, Row::kRegisters>(parts, row, begin, width, more);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      // Rounded as it would be in memory. Past the end, a choice's weight may have made it NaN.
      const bool inside = kVector || begin + j < width;
      const float update = inside ? ToFloat(ToBf16(more[j])) : 0.0f;
      held[i][j] = __fmaf_rn(scale, update, held[i][j]);
    }
    StoreGroup<kVector>(held[i], begin, width, hidden[row]);
  }
  NormHeld<kVector>(held, weights, eps, row, width, normed, codes);
}

// fn(Row()) with the narrowest that takes the width.
template <class Fn>
void WithRow(int64_t width, Fn fn) {
  static_assert(kRowWidth<WidestRow> == kMaxNormWidth);
  if (width <= kRowWidth<NarrowRow>) {
    fn(NarrowRow());
  } else if (width <= kRowWidth<WideRow>) {
    fn(WideRow());
  } else {
    fn(WidestRow());
  }
}

bool InGroups(std::span<const float> weight) {
  return reinterpret_cast<uintptr_t>(weight.data()) % 16 == 0;
}

}  // namespace

void AddRmsNorm(const AddRmsNormArgs& args, const Stream& stream, RowLaunch launch) {
  Validate(args);
  const int64_t num_rows = args.hidden.dim(0);
  const int64_t width = args.hidden.dim(1);
  if (num_rows == 0) return;
  const bool in_groups = InGroups(args.hidden, width) && InGroups(args.update, width) &&
                         InGroups(args.normed, width) && InGroups(args.weight);
  WithElement(args.update.dtype(), [&](auto update) {
    WithElement(args.normed.dtype(), [&](auto normed) {
      WithVector(in_groups, [&](auto vector) {
        using TU = decltype(update);
        using TY = decltype(normed);
        LaunchAhead("add_rms_norm", AddRmsNormKernel<decltype(vector)::value, TU, TY>,
                    {static_cast<unsigned>(num_rows), SumThreads(width)}, stream,
                    RowsOf<float>(args.hidden), RowsOf<const TU>(args.update), args.scale,
                    args.weight.data(), args.eps, width, RowsOf<TY>(args.normed),
                    CodeRowsOf(args.codes), launch.live);
      });
    });
  });
}

void CombineAddRmsNorm(const CombineArgs& combine, const AddRmsNormArgs& norm, const Stream& stream,
                       RowLaunch launch) {
  Validate(combine, norm);
  const int64_t num_rows = norm.hidden.dim(0);
  const int64_t width = norm.hidden.dim(1);
  if (num_rows == 0) return;
  const bool in_groups = InGroups(combine.rows, width) && InGroups(combine.shared, width) &&
                         InGroups(norm.hidden, width) && InGroups(norm.normed, width) &&
                         InGroups(norm.weight);
  WithElement(combine.rows.dtype(), [&](auto rows) {
    WithElement(norm.normed.dtype(), [&](auto normed) {
      WithVector(in_groups, [&](auto vector) {
        WithRow(width, [&](auto row) {
          using TX = decltype(rows);
          using TY = decltype(normed);
          LaunchAhead("combine_add_rms_norm",
                      CombineAddRmsNormKernel<decltype(vector)::value, decltype(row), TX, TY>,
                      {static_cast<unsigned>(num_rows), SumThreads(width)}, stream,
                      PartsOf<TX>(combine, launch.status), RowsOf<float>(norm.hidden), norm.scale,
                      norm.weight.data(), norm.eps, width, RowsOf<TY>(norm.normed),
                      CodeRowsOf(norm.codes), launch.live);
        });
      });
    });
  });
}

void RmsNorm(const RmsNormArgs& args, const Stream& stream, RowLaunch launch) {
  ValidateOnDevice(args);
  const int64_t num_rows = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  if (num_rows == 0) return;
  const bool in_groups =
      InGroups(args.x, width) && InGroups(args.y, width) && InGroups(args.weight);
  WithElement(args.x.dtype(), [&](auto x) {
    WithElement(args.y.dtype(), [&](auto y) {
      WithVector(in_groups, [&](auto vector) {
        using TX = decltype(x);
        using TY = decltype(y);
        LaunchAhead("rms_norm", RmsNormKernel<decltype(vector)::value, TX, TY>,
                    {static_cast<unsigned>(num_rows), SumThreads(width)}, stream,
                    RowsOf<const TX>(args.x), args.weight.data(), args.eps, width,
                    RowsOf<TY>(args.y), args.scale, CodeRowsOf(args.codes), launch.live);
      });
    });
  });
}

}  // namespace quire::cuda
