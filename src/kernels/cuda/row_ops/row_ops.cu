#include <cstdint>
#include <type_traits>

#include "base/maths.h"
#include "device/collective.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/row_ops/row_ops_codes.cuh"
#include "kernels/cuda/row_ops/row_ops_combine.cuh"
#include "kernels/cuda/row_ops/row_ops_launch.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"
#include "kernels/cuda/row_ops/row_ops_rope.cuh"

namespace quire::cuda {
namespace {

// ---- Embed ----

template <bool kVector, class T>
__global__ void __launch_bounds__(kCutThreads)
    EmbedKernel(Rows<const T> table, Share vocabulary, bool is_part, const int32_t* tokens,
                float scale, int64_t width, Rows<float> hidden, LiveRows live, StatusWord status) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t begin = CutBegin();
  if (begin >= width || !IsLive(live, row)) return;
  const int64_t token = tokens[row] - vocabulary.first;
  float v[kGroup] = {};
  if (token >= 0 && token < vocabulary.count) {
    LoadGroup<kVector>(table[token], begin, width, v);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) v[i] = __fmul_rn(v[i], scale);
  } else if (begin == 0 && !is_part) {
    Report(status, DeviceFault::kToken, Launch::kEmbed, static_cast<uint32_t>(row));
  }
  StoreGroup<kVector>(v, begin, width, hidden[row]);
}

// Bytes of a row are a multiple of 2.
__global__ void ClearOtherRowsKernel(std::byte* rows, int64_t stride_bytes, int64_t row_bytes,
                                     const int32_t* first, const int32_t* end) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  if (row >= *first && row < *end) return;
  auto* const values = reinterpret_cast<uint16_t*>(rows + row * stride_bytes);
  for (int64_t i = threadIdx.x; i < row_bytes / 2; i += blockDim.x) values[i] = 0;
}

// ---- Rope ----

__global__ void GatherRopeKernel(Rows<const float> table_cos, Rows<const float> table_sin,
                                 int64_t context, const TokenCount* positions, int64_t num_pairs,
                                 Rows<float> cos, Rows<float> sin, LiveRows live,
                                 StatusWord status) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  if (!IsLive(live, row)) return;
  int64_t position = positions[row].raw();
  if (position < 0 || position >= context) {
    if (threadIdx.x == 0) {
      Report(status, DeviceFault::kCapacity, Launch::kRope, static_cast<uint32_t>(row));
    }
    position = context - 1;
  }
  for (int64_t i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    cos[row][i] = table_cos[position][i];
    sin[row][i] = table_sin[position][i];
  }
}

constexpr int kRopeWarps = 8;  // a head each

template <class TX, class TY>
__global__ void __launch_bounds__(kRopeWarps * 32)
    RopeKernel(Heads<const TX> x, Rows<const float> cos, Rows<const float> sin, RopePairs pairs,
               int64_t num_heads, int64_t num_pairs, Heads<TY> y, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t head = int64_t{blockIdx.y} * kRopeWarps + threadIdx.x / 32;
  if (head >= num_heads || !IsLive(live, row)) return;
  RotateHead(static_cast<int>(threadIdx.x % 32), x.At(row, head), cos[row], sin[row], pairs,
             num_pairs, y.At(row, head));
}

// ---- Value by value ----

template <bool kVector, class TX, class TY>
__global__ void __launch_bounds__(kCutThreads)
    SiluMulKernel(Rows<const TX> gate_up, int64_t width, Rows<TY> y, CodeRows codes,
                  LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t begin = CutBegin();
  if (!IsLive(live, row)) return;  // the whole CTA
  float gate[kGroup] = {}, up[kGroup];
  if (begin < width) {
    LoadGroup<kVector>(gate_up[row], begin, width, gate);
    LoadGroup<kVector>(gate_up[row] + width, begin, width, up);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) gate[i] = __fmul_rn(Silu(gate[i]), up[i]);
    StoreGroup<kVector>(gate, begin, width, y[row]);
  }
  StoreCodes<kVector, TY>(gate, row, begin, width, codes);
}

template <bool kVector, class T>
__global__ void __launch_bounds__(kCutThreads)
    AddScaledKernel(Rows<const T> x, float scale, int64_t width, Rows<float> y, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t begin = CutBegin();
  if (begin >= width || !IsLive(live, row)) return;
  float more[kGroup], sum[kGroup];
  LoadGroup<kVector>(x[row], begin, width, more);
  LoadGroup<kVector>(y[row], begin, width, sum);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) sum[i] = __fmaf_rn(scale, more[i], sum[i]);
  StoreGroup<kVector>(sum, begin, width, y[row]);
}

template <bool kVector, class TX, class TY>
__global__ void __launch_bounds__(kCutThreads)
    CopyKernel(Rows<const TX> x, int64_t width, Rows<TY> y) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t begin = CutBegin();
  if (begin >= width) return;
  float values[kGroup];
  LoadGroup<kVector>(x[row], begin, width, values);
  StoreGroup<kVector>(values, begin, width, y[row]);
}

template <bool kVector, class TX, class TY>
__global__ void __launch_bounds__(kCutThreads)
    CombineKernel(CombineParts<TX> parts, int64_t width, Rows<TY> y, LiveRows live) {
  TakeTurn();
  const int64_t row = blockIdx.x;
  const int64_t begin = CutBegin();
  if (begin >= width || !IsLive(live, row)) return;
  float sum[kGroup];
  CombineGroup<kVector, /*kRegisters=*/32>(parts, row, begin, width, sum);
  StoreGroup<kVector>(sum, begin, width, y[row]);
}

}  // namespace

// ---- Ops ----

void Embed(const EmbedRowsArgs& args, const Stream& stream, RowLaunch launch) {
  Validate(args);
  const int64_t width = args.hidden.dim(1);
  if (args.tokens.empty() || width == 0) return;
  WithElement(args.table.dtype(), [&](auto element) {
    using T = decltype(element);
    WithVector(InGroups(args.table, width) && InGroups(args.hidden, width), [&](auto vector) {
      LaunchAhead("embed", EmbedKernel<decltype(vector)::value, T>,
                  {CutGrid(args.hidden.dim(0), width), kCutThreads}, stream,
                  RowsOf<const T>(args.table), Share{args.first_token, args.table.dim(0)},
                  args.is_part, args.tokens.data(), args.scale, width, RowsOf<float>(args.hidden),
                  launch.live, launch.status);
    });
  });
}

void ClearOtherRows(TensorView rows, const int32_t* first, const int32_t* end,
                    const Stream& stream) {
  if (rows.dim(0) == 0) return;
  const int64_t bytes = DTypeBytes(rows.dtype());
  LaunchAhead("clear_other_rows", ClearOtherRowsKernel,
              {static_cast<unsigned>(rows.dim(0)), kCutThreads}, stream, rows.data(),
              rows.stride(0) * bytes, rows.dim(1) * bytes, first, end);
}

void GatherRope(const StepAngles& args, const Stream& stream, RowLaunch launch) {
  ValidateOnDevice(args);
  if (args.positions.empty() || args.cos.dim(1) == 0) return;
  LaunchAhead("gather_rope", GatherRopeKernel, {static_cast<unsigned>(args.positions.size()), 32},
              stream, RowsOf<const float>(args.table_cos), RowsOf<const float>(args.table_sin),
              args.table_cos.dim(0), args.positions.data(), args.cos.dim(1),
              RowsOf<float>(args.cos), RowsOf<float>(args.sin), launch.live, launch.status);
}

void Rope(const RopeArgs& args, const Stream& stream, RowLaunch launch) {
  Validate(args);
  const int64_t num_rows = args.x.dim(0);
  const int64_t num_heads = args.x.dim(1);
  const int64_t num_pairs = args.x.dim(2) / 2;
  if (num_rows == 0 || num_heads == 0 || num_pairs == 0) return;
  const dim3 grid(static_cast<unsigned>(num_rows),
                  static_cast<unsigned>(CeilDiv(num_heads, int64_t{kRopeWarps})));
  WithElement(args.x.dtype(), [&](auto x) {
    WithElement(args.y.dtype(), [&](auto y) {
      using TX = decltype(x);
      using TY = decltype(y);
      LaunchAhead("rope", RopeKernel<TX, TY>, {grid, kRopeWarps * 32}, stream,
                  HeadsOf<const TX>(args.x), RowsOf<const float>(args.cos),
                  RowsOf<const float>(args.sin), args.pairs, num_heads, num_pairs,
                  HeadsOf<TY>(args.y), launch.live);
    });
  });
}

void SiluMul(const SiluMulArgs& args, const Stream& stream, RowLaunch launch) {
  ValidateOnDevice(args);
  const int64_t width = args.y.dim(1);
  if (args.y.dim(0) == 0 || width == 0) return;
  WithElement(args.gate_up.dtype(), [&](auto x) {
    WithElement(args.y.dtype(), [&](auto y) {
      WithVector(InGroups(args.gate_up, width) && InGroups(args.y, width), [&](auto vector) {
        using TX = decltype(x);
        using TY = decltype(y);
        LaunchAhead("silu_mul", SiluMulKernel<decltype(vector)::value, TX, TY>,
                    {CutGrid(args.y.dim(0), width), kCutThreads}, stream,
                    RowsOf<const TX>(args.gate_up), width, RowsOf<TY>(args.y),
                    CodeRowsOf(args.codes), launch.live);
      });
    });
  });
}

void AddScaled(const AddScaledArgs& args, const Stream& stream, RowLaunch launch) {
  Validate(args);
  const int64_t width = args.y.dim(1);
  if (args.y.dim(0) == 0 || width == 0) return;
  WithElement(args.x.dtype(), [&](auto x) {
    WithVector(InGroups(args.x, width) && InGroups(args.y, width), [&](auto vector) {
      using T = decltype(x);
      LaunchAhead("add_scaled", AddScaledKernel<decltype(vector)::value, T>,
                  {CutGrid(args.y.dim(0), width), kCutThreads}, stream, RowsOf<const T>(args.x),
                  args.scale, width, RowsOf<float>(args.y), launch.live);
    });
  });
}

void CopyRows(const CopyRowsArgs& args, const Stream& stream) {
  Validate(args);
  const int64_t width = args.y.dim(1);
  if (args.y.dim(0) == 0 || width == 0) return;
  WithElement(args.x.dtype(), [&](auto x) {
    WithElement(args.y.dtype(), [&](auto y) {
      WithVector(InGroups(args.x, width) && InGroups(args.y, width), [&](auto vector) {
        using TX = decltype(x);
        using TY = decltype(y);
        LaunchAhead("copy_rows", CopyKernel<decltype(vector)::value, TX, TY>,
                    {CutGrid(args.y.dim(0), width), kCutThreads}, stream, RowsOf<const TX>(args.x),
                    width, RowsOf<TY>(args.y));
      });
    });
  });
}

void Combine(const CombineArgs& args, const Stream& stream, RowLaunch launch) {
  Validate(args);
  const int64_t num_rows = args.y.dim(0);
  const int64_t width = args.y.dim(1);
  if (num_rows == 0 || width == 0) return;
  const bool in_groups =
      InGroups(args.rows, width) && InGroups(args.y, width) && InGroups(args.shared, width);
  WithElement(args.rows.dtype(), [&](auto rows) {
    WithElement(args.y.dtype(), [&](auto y) {
      WithVector(in_groups, [&](auto vector) {
        using TX = decltype(rows);
        using TY = decltype(y);
        LaunchAhead("combine", CombineKernel<decltype(vector)::value, TX, TY>,
                    {CutGrid(num_rows, width), kCutThreads}, stream,
                    PartsOf<TX>(args, launch.status), width, RowsOf<TY>(args.y), launch.live);
      });
    });
  });
}

}  // namespace quire::cuda
