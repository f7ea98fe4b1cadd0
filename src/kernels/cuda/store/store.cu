#include <algorithm>

#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/store/store.h"
#include "kernels/cuda/store/store_row.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarpsPerCta = 8;

// What all kernels here begin with: the row of this warp, and whether its slot is one of the pool.
struct WarpRow {
  __device__ WarpRow()
      : index((int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x % kWarp)) {}
  __device__ bool Check(const StoreView& store, int64_t slot, StatusWord status,
                        Launch launch) const {
    if (store.Holds(slot)) return true;
    if (lane == 0) Report(status, DeviceFault::kSlot, launch, static_cast<uint32_t>(index));
    return false;
  }

  int64_t index;
  int lane;
};

// A warp for each row.
LaunchShape ShapeFor(int64_t num_rows) {
  return {.grid = dim3(static_cast<unsigned>(CeilDiv(num_rows, int64_t{kWarpsPerCta}))),
          .block = dim3(kWarpsPerCta * kWarp)};
}

// A view's rows as kernels take them.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  int32_t width;

  __device__ T* At(int64_t row) const { return data + row * stride; }
};
template <class T>
Rows<const T> RowsOf(const ConstTensorView& view) {
  if (view.empty()) return {nullptr, 0, 0};
  return {view.Address<T>(), view.stride(0), static_cast<int32_t>(view.dim(1))};
}
template <class T>
Rows<T> RowsOf(const TensorView& view) {
  if (view.empty()) return {nullptr, 0, 0};
  return {view.Address<T>(), view.stride(0), static_cast<int32_t>(view.dim(1))};
}

// Calls fn(T()) with the view's element type.
template <class View, class Fn>
void WithType(const View& view, Fn fn) {
  if (view.dtype() == DType::kF32) {
    fn(float());
  } else {
    fn(Bf16());
  }
}

// ---- Write and gather ----

template <class L, class R>
struct ArraySource {
  const L* latent;
  const R* rope;
  KvDims dims;

  __device__ float4 Latent(int32_t i) const { return LoadQuad(latent, i, dims.latent_dim); }
  __device__ float4 Rope(int32_t i) const { return LoadQuad(rope, i, dims.rope_dim); }
};

template <class L, class R>
__global__ void WriteRows(StoreView store, const Slot* slots, int64_t num_rows,
                          Rows<const L> latent, Rows<const R> rope, StatusWord status) {
  const WarpRow row;
  if (row.index >= num_rows) return;
  const int64_t slot = slots[row.index].raw();
  if (!row.Check(store, slot, status, Launch::kStoreWrite) || store.IsScratch(slot)) return;
  EncodeRow(store, slot, ArraySource<L, R>{latent.At(row.index), rope.At(row.index), store.dims},
            row.lane);
}

template <class L, class R>
__global__ void GatherRows(StoreView store, const Slot* slots, int64_t num_rows, Rows<L> latent,
                           Rows<R> rope, StatusWord status) {
  const WarpRow row;
  if (row.index >= num_rows) return;
  const int64_t named = slots[row.index].raw();
  const int64_t slot = row.Check(store, named, status, Launch::kStoreGather) ? named : 0;
  const RowReader reader(store, slot);
  for (int32_t i = 4 * row.lane; i < latent.width; i += 4 * kWarp) {
    StoreQuad(reader.Latent(i), latent.At(row.index), i, latent.width);
  }
  for (int32_t i = 4 * row.lane; i < rope.width; i += 4 * kWarp) {
    StoreQuad(reader.Rope(i), rope.At(row.index), i, rope.width);
  }
}

// ---- Norm, rotation and write ----

template <class T>
struct NormRopeSource {
  const T* kv;
  const float* norm_weight;
  const float* cos;  // of this row's position
  const float* sin;
  float factor;
  KvDims dims;
  RopePairs pairs;

  __device__ float4 Latent(int32_t i) const {
    const float4 x = LoadQuad(kv, i, dims.latent_dim);
    const float4 w = LoadQuad(norm_weight, i, dims.latent_dim);
    return {x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w};
  }
  __device__ float4 Rope(int32_t i) const {
    return {Rotated(i), Rotated(i + 1), Rotated(i + 2), Rotated(i + 3)};
  }
  // As the CPU: the second product rounded, the first one fused.
  __device__ float Rotated(int32_t i) const {
    if (i >= dims.rope_dim) return 0.0f;
    const int32_t half = dims.rope_dim / 2;
    const bool interleaved = pairs == RopePairs::kInterleaved;
    const bool is_first = interleaved ? i % 2 == 0 : i < half;
    const int32_t pair = interleaved ? i / 2 : i % half;
    const T* rope = kv + dims.latent_dim;
    const float a = Widen(rope[interleaved ? 2 * pair : pair]);
    const float b = Widen(rope[interleaved ? 2 * pair + 1 : pair + half]);
    if (is_first) return __fmaf_rn(a, cos[pair], -__fmul_rn(b, sin[pair]));
    return __fmaf_rn(b, cos[pair], __fmul_rn(a, sin[pair]));
  }
};

template <class T>
__device__ float NormFactor(const T* x, int32_t n, float eps, int lane) {
  float sum = 0.0f;
#pragma unroll 1  // as in store_row.cuh
  for (int32_t i = 4 * lane; i < n; i += 4 * kWarp) {
    const float4 v = LoadQuad(x, i, n);
    sum = __fmaf_rn(v.x, v.x, sum);
    sum = __fmaf_rn(v.y, v.y, sum);
    sum = __fmaf_rn(v.z, v.z, sum);
    sum = __fmaf_rn(v.w, v.w, sum);
  }
  for (int distance = kWarp / 2; distance >= 1; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(n)) + eps));
}

// What a row is made of, on its way to its warp: read one by one where it is used, each would be waited for. A row
// that is wider than a model's is read where it lies.
template <class T>
struct alignas(16) StagedRow {
  static constexpr int32_t kLatent = 576, kRope = 64;
  T kv[kLatent + kRope];
  float norm_weight[kLatent];
  float cos[kRope / 2], sin[kRope / 2];

  __device__ static bool Holds(const KvDims& dims) {
    return dims.latent_dim <= kLatent && dims.rope_dim <= kRope;
  }
};

// to[0 .. n) = from[0 .. n), 16 bytes a lane where they lie so, all on their way before one is written.
template <class T>
__device__ void StageRow(const T* from, int32_t n, T* to, int lane) {
  constexpr int kAhead = 5;
  const auto words = n * static_cast<int32_t>(sizeof(T)) / 16;
  if (IsAligned(from, 16) && words * 16 == n * static_cast<int32_t>(sizeof(T))) {
    uint4 ahead[kAhead];
    for (int32_t first = lane; first < words; first += kAhead * kWarp) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int32_t word = first + i * kWarp;
        if (word < words) ahead[i] = reinterpret_cast<const uint4*>(from)[word];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int32_t word = first + i * kWarp;
        if (word < words) reinterpret_cast<uint4*>(to)[word] = ahead[i];
      }
    }
    return;
  }
#pragma unroll 1
  for (int32_t i = lane; i < n; i += kWarp) to[i] = from[i];
}

struct RopeTables {
  Rows<const float> cos, sin;
  int64_t num_positions;
  const TokenCount* positions;
  RopePairs pairs;
};

template <class T>
__global__ void __launch_bounds__(kWarpsPerCta* kWarp)
    RopeStoreRows(StoreView store, const Slot* slots, int64_t num_rows, Rows<const T> kv,
                  const float* norm_weight, float eps, RopeTables tables, StatusWord status) {
  __shared__ StagedRow<T> all_staged[kWarpsPerCta];
  StagedRow<T>& staged = all_staged[threadIdx.x / kWarp];
  const KvDims& dims = store.dims;
  const WarpRow row;
  const bool stages = row.index < num_rows && StagedRow<T>::Holds(dims);
  if (stages) StageRow(norm_weight, dims.latent_dim, staged.norm_weight, row.lane);
  TakeTurn();  // nobody writes weights
  if (row.index >= num_rows) return;
  const int64_t slot = slots[row.index].raw();
  const int64_t position = dims.rope_dim > 0 ? tables.positions[row.index].raw() : 0;
  NormRopeSource<T> source{.kv = kv.At(row.index),
                           .norm_weight = norm_weight,
                           .cos = nullptr,
                           .sin = nullptr,
                           .factor = 0.0f,
                           .dims = dims,
                           .pairs = tables.pairs};
  if (stages) {
    StageRow(source.kv, dims.latent_dim + dims.rope_dim, staged.kv, row.lane);
    source.kv = staged.kv;
    source.norm_weight = staged.norm_weight;
  }
  if (!row.Check(store, slot, status, Launch::kStoreWrite) || store.IsScratch(slot)) return;
  if (dims.rope_dim > 0 &&
      static_cast<uint64_t>(position) >= static_cast<uint64_t>(tables.num_positions)) {
    if (row.lane == 0) {
      Report(status, DeviceFault::kCapacity, Launch::kStoreWrite, static_cast<uint32_t>(row.index));
    }
    return;
  }
  source.cos = tables.cos.At(position);
  source.sin = tables.sin.At(position);
  if (stages && dims.rope_dim > 0) {
    StageRow(source.cos, dims.rope_dim / 2, staged.cos, row.lane);
    StageRow(source.sin, dims.rope_dim / 2, staged.sin, row.lane);
    source.cos = staged.cos;
    source.sin = staged.sin;
  }
  __syncwarp();  // what other lanes have staged is there
  source.factor = NormFactor(source.kv, dims.latent_dim, eps, row.lane);
  EncodeRow(store, slot, source, row.lane);
}

// ---- Index keys ----

struct KeyNorm {
  const float* weight;
  const float* bias;
  float eps;
};

// The mean over n values of value(x_i), all lanes of a warp together.
template <class Value>
__device__ float WarpMean(const float* x, int32_t n, int lane, Value value) {
  float sum = 0.0f;
  for (int32_t i = lane; i < n; i += kWarp) sum += value(x[i]);
  for (int distance = kWarp / 2; distance >= 1; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }
  return __fdiv_rn(sum, static_cast<float>(n));
}

__global__ void IndexKeyRows(StoreView store, const Slot* slots, int64_t num_rows, Rows<float> keys,
                             KeyNorm norm, Rows<const float> cos, Rows<const float> sin,
                             int32_t num_pairs, RopePairs pairs, StatusWord status) {
  TakeTurn();
  const WarpRow row;
  if (row.index >= num_rows) return;
  const int64_t slot = slots[row.index].raw();
  if (!row.Check(store, slot, status, Launch::kStoreWrite) || store.IsScratch(slot)) return;
  const int32_t n = store.dims.latent_dim;
  float* x = keys.At(row.index);
  const float mean = WarpMean(x, n, row.lane, [](float v) { return v; });
  const float variance = WarpMean(x, n, row.lane, [&](float v) { return (v - mean) * (v - mean); });
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(variance + norm.eps));
  for (int32_t i = row.lane; i < n; i += kWarp) {
    x[i] = __fmaf_rn((x[i] - mean) * factor, norm.weight[i], norm.bias[i]);
  }
  __syncwarp();  // a pair's values may be two lanes'
  const bool interleaved = pairs == RopePairs::kInterleaved;
  for (int32_t pair = row.lane; pair < num_pairs; pair += kWarp) {
    float& first = x[interleaved ? 2 * pair : pair];
    float& second = x[interleaved ? 2 * pair + 1 : pair + num_pairs];
    const float a = first, b = second;
    const float c = cos.At(row.index)[pair], s = sin.At(row.index)[pair];
    first = __fmaf_rn(a, c, -__fmul_rn(b, s));
    second = __fmaf_rn(b, c, __fmul_rn(a, s));
  }
  __syncwarp();  // a quad is of several lanes
  EncodeRow(store, slot, ArraySource<float, float>{x, x, store.dims}, row.lane);
}

// ---- Move ----

// Copies a row between its page and its packed form in words of W, which every offset is a multiple
// of (MoveWord). Word i of the row is word i of its packed form.
template <class W, class Copy>
__device__ void ForEachWord(const StoreView& store, int32_t num_parts, int32_t row, int lane,
                            Copy copy) {
  int32_t packed = 0;
#pragma unroll  // an index known only at run time would put the parts into local memory
  for (int32_t p = 0; p < 3; ++p) {
    if (p >= num_parts) break;
    const KvPart& part = store.parts[p];
    for (int32_t byte = lane * static_cast<int32_t>(sizeof(W)); byte < part.row_bytes;
         byte += kWarp * static_cast<int32_t>(sizeof(W))) {
      copy(part.OffsetOf(row, byte), packed + byte);
    }
    packed += part.row_bytes;
  }
}

struct MoveRows {
  const Slot* from;
  const Slot* to;
  int64_t num_rows;
  int32_t num_parts;
  int32_t packed_row_bytes;
  std::byte* staged;
};

template <class W>
__global__ void StageRows(StoreView store, MoveRows move, StatusWord status) {
  const WarpRow row;
  if (row.index >= move.num_rows) return;
  const int64_t slot = move.from[row.index].raw();
  if (!row.Check(store, slot, status, Launch::kStoreMove)) return;
  const std::byte* page = store.Page(slot);
  std::byte* staged = move.staged + row.index * move.packed_row_bytes;
  ForEachWord<W>(
      store, move.num_parts, store.RowInPage(slot), row.lane, [&](int32_t in_page, int32_t packed) {
        *reinterpret_cast<W*>(staged + packed) = *reinterpret_cast<const W*>(page + in_page);
      });
}

template <class W>
__global__ void UnstageRows(StoreView store, MoveRows move, StatusWord status) {
  const WarpRow row;
  if (row.index >= move.num_rows) return;
  const int64_t slot = move.to[row.index].raw();
  if (!row.Check(store, slot, status, Launch::kStoreMove) || store.IsScratch(slot)) return;
  if (!store.Holds(move.from[row.index].raw())) return;  // nothing was staged
  std::byte* page = store.Page(slot);
  const std::byte* staged = move.staged + row.index * move.packed_row_bytes;
  ForEachWord<W>(
      store, move.num_parts, store.RowInPage(slot), row.lane, [&](int32_t in_page, int32_t packed) {
        *reinterpret_cast<W*>(page + in_page) = *reinterpret_cast<const W*>(staged + packed);
      });
}

// The widest word, up to 16 bytes, that divides every offset a move can see.
int64_t MoveWord(const KvLayout& layout, const StoreView& store, const MoveRows& move) {
  uint64_t all =
      reinterpret_cast<uintptr_t>(store.memory) | reinterpret_cast<uintptr_t>(move.staged) |
      static_cast<uint64_t>(store.page_bytes) | static_cast<uint64_t>(move.packed_row_bytes) | 16;
  for (const KvPart& part : layout.parts()) {
    all |= static_cast<uint64_t>(part.begin | part.row_bytes | part.row_stride | part.chunk_bytes);
  }
  return static_cast<int64_t>(all & (~all + 1));
}

template <class W>
void LaunchMove(const StoreView& store, const MoveRows& move, const Stream& stream,
                StatusWord status) {
  const LaunchShape shape = ShapeFor(move.num_rows);
  LaunchInTurn("StageRows", StageRows<W>, shape, stream, store, move, status);
  LaunchInTurn("UnstageRows", UnstageRows<W>, shape, stream, store, move, status);
}

}  // namespace

void StoreWrite(const StoreWriteArgs& args, const Stream& stream, StatusWord status) {
  ValidateShapes(args);
  const int64_t num_rows = static_cast<int64_t>(args.slots.size());
  if (num_rows == 0) return;
  WithType(args.latent, [&](auto l) {
    WithType(args.rope, [&](auto r) {
      using L = decltype(l);
      using R = decltype(r);
      LaunchInTurn("WriteRows", WriteRows<L, R>, ShapeFor(num_rows), stream,
                   WriteViewOf(args.store), args.slots.data(), num_rows, RowsOf<L>(args.latent),
                   RowsOf<R>(args.rope), status);
    });
  });
}

void StoreGather(const StoreGatherArgs& args, const Stream& stream, StatusWord status) {
  ValidateShapes(args);
  const int64_t num_rows = static_cast<int64_t>(args.slots.size());
  if (num_rows == 0) return;
  WithType(args.latent, [&](auto l) {
    WithType(args.rope, [&](auto r) {
      using L = decltype(l);
      using R = decltype(r);
      LaunchInTurn("GatherRows", GatherRows<L, R>, ShapeFor(num_rows), stream,
                   ReadViewOf(args.store), args.slots.data(), num_rows, RowsOf<L>(args.latent),
                   RowsOf<R>(args.rope), status);
    });
  });
}

void StoreMove(const StoreMoveArgs& args, const Stream& stream, StatusWord status) {
  ValidateShapes(args);
  const KvLayout& layout = args.store.layout();
  const StoreView store = WriteViewOf(args.store);
  const MoveRows move{.from = args.from.data(),
                      .to = args.to.data(),
                      .num_rows = static_cast<int64_t>(args.from.size()),
                      .num_parts = static_cast<int32_t>(layout.parts().size()),
                      .packed_row_bytes = layout.packed_row_bytes(),
                      .staged = args.workspace.data()};
  if (move.num_rows == 0) return;
  switch (MoveWord(layout, store, move)) {
    case 16:
      return LaunchMove<uint4>(store, move, stream, status);
    case 8:
      return LaunchMove<uint2>(store, move, stream, status);
    case 4:
      return LaunchMove<uint32_t>(store, move, stream, status);
    case 2:
      return LaunchMove<uint16_t>(store, move, stream, status);
    default:
      return LaunchMove<uint8_t>(store, move, stream, status);
  }
}

void RopeStore(const RopeStoreArgs& args, const Stream& stream, StatusWord status) {
  Validate(args);
  const int64_t num_rows = static_cast<int64_t>(args.slots.size());
  if (num_rows == 0) return;
  const bool has_rope = args.store.layout().dims().rope_dim > 0;
  const RopeTables tables{.cos = RowsOf<float>(args.cos),
                          .sin = RowsOf<float>(args.sin),
                          .num_positions = has_rope ? args.cos.dim(0) : 0,
                          .positions = args.positions.data(),
                          .pairs = args.pairs};
  WithType(args.kv, [&](auto t) {
    LaunchAhead("RopeStoreRows", RopeStoreRows<std::remove_const_t<decltype(t)>>,
                ShapeFor(num_rows), stream, WriteViewOf(args.store), args.slots.data(), num_rows,
                RowsOf<decltype(t)>(args.kv), args.norm_weight.data(), args.eps, tables, status);
  });
}

void WriteIndexKeys(const WriteIndexKeysArgs& args, const Stream& stream, StatusWord status) {
  Validate(args);
  const int64_t num_rows = std::ssize(args.slots);
  if (num_rows == 0) return;
  LaunchAhead("IndexKeyRows", IndexKeyRows, ShapeFor(num_rows), stream, WriteViewOf(args.store),
              args.slots.data(), num_rows, RowsOf<float>(args.key),
              KeyNorm{args.norm_weight.data(), args.norm_bias.data(), args.eps},
              RowsOf<float>(ConstTensorView(args.angles.cos)),
              RowsOf<float>(ConstTensorView(args.angles.sin)),
              static_cast<int32_t>(args.angles.cos.dim(1)), args.angles.pairs, status);
}

}  // namespace quire::cuda
