// AddRmsNorm and RmsNorm: one CTA per row, the row in its registers.
#include <cstdint>
#include <span>

#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/row_ops_launch.cuh"
#include "kernels/cuda/row_ops_math.cuh"

namespace quire::cuda {
namespace {

constexpr int kMaxSumThreads = 1024;
constexpr int kGroupsPerThread = 2;  // kMaxNormWidth / (kMaxSumThreads * kGroup)
static_assert(kMaxNormWidth == int64_t{kMaxSumThreads} * kGroup * kGroupsPerThread);

using Held = float[kGroupsPerThread][kGroup];  // a thread's part of a row

__device__ int64_t HeldBegin(int i) {
  return (int64_t{threadIdx.x} + int64_t{i} * blockDim.x) * kGroup;
}

// Squares a thread's values, adds them over the CTA and writes the row's norm. What is past the end
// of the row is 0 in `held`, and adds nothing.
template <bool kVector, class T>
__device__ void NormHeld(const Held& held, const float* weight, float eps, int64_t width, T* to) {
  __shared__ float scratch[32];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) squares = __fmaf_rn(held[i][j], held[i][j], squares);
  }
  squares = SumOfThreads(squares, scratch);
  const float mean = __fdiv_rn(squares, static_cast<float>(width));
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    if (HeldBegin(i) >= width) break;
    float v[kGroup];
    // The weights are read one by one unless all rows are aligned: then they may not be either.
    LoadGroup<kVector>(weight, HeldBegin(i), width, v);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) v[j] = __fmul_rn(__fmul_rn(held[i][j], factor), v[j]);
    StoreGroup<kVector>(v, HeldBegin(i), width, to);
  }
}

template <bool kVector, class TX, class TY>
__global__ void __launch_bounds__(kMaxSumThreads)
    RmsNormKernel(Rows<const TX> x, const float* weight, float eps, int64_t width, Rows<TY> y,
                  LiveRows live) {
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;  // the whole CTA
  Held held = {};
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    if (HeldBegin(i) < width) LoadGroup<kVector>(x[row], HeldBegin(i), width, held[i]);
  }
  NormHeld<kVector>(held, weight, eps, width, y[row]);
}

template <bool kVector, class TU, class TY>
__global__ void __launch_bounds__(kMaxSumThreads)
    AddRmsNormKernel(Rows<float> hidden, Rows<const TU> update, float scale, const float* weight,
                     float eps, int64_t width, Rows<TY> normed, LiveRows live) {
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;  // the whole CTA
  Held held = {};
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; ++i) {
    const int64_t begin = HeldBegin(i);
    if (begin >= width) break;
    float more[kGroup];
    LoadGroup<kVector>(hidden[row], begin, width, held[i]);
    LoadGroup<kVector>(update[row], begin, width, more);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) held[i][j] = __fmaf_rn(scale, more[j], held[i][j]);
    StoreGroup<kVector>(held[i], begin, width, hidden[row]);
  }
  NormHeld<kVector>(held, weight, eps, width, normed[row]);
}

bool InGroups(std::span<const float> weight) {
  return reinterpret_cast<uintptr_t>(weight.data()) % 16 == 0;
}

}  // namespace

void AddRmsNorm(const AddRmsNormArgs& args, const Stream& stream) {
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
        AddRmsNormKernel<decltype(vector)::value, TU, TY>
            <<<static_cast<unsigned>(num_rows), SumThreads(width), 0, stream.get()>>>(
                RowsOf<float>(args.hidden), RowsOf<const TU>(args.update), args.scale,
                args.weight.data(), args.eps, width, RowsOf<TY>(args.normed), args.live);
      });
    });
  });
  CheckLaunch("add_rms_norm");
}

void RmsNorm(const RmsNormArgs& args, const Stream& stream) {
  Validate(args);
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
        RmsNormKernel<decltype(vector)::value, TX, TY>
            <<<static_cast<unsigned>(num_rows), SumThreads(width), 0, stream.get()>>>(
                RowsOf<const TX>(args.x), args.weight.data(), args.eps, width, RowsOf<TY>(args.y),
                args.live);
      });
    });
  });
  CheckLaunch("rms_norm");
}

}  // namespace quire::cuda
