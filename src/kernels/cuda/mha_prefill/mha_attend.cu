// Attention in multi-head form: a CTA per multiprocessor, which takes item after item, 128 queries of one
// head over all keys that they see.
//
//   producer    one thread, which has boxes of queries, keys and values copied
//   consumers   two, with 64 queries each: S = Q K^T, softmax, O += P V
//
// Keys come in tiles, the last first: it is the one with a mask. A consumer gives the next tile's scores
// to the tensor cores together with this tile's values, and computes weights while those are added; the
// two consumers take turns at that, so that one's weights are computed beside the other's products.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/narrow_float.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/lines.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace {

constexpr int kConsumers = 2;
constexpr int kRoles = kConsumers + 1;  // the producer is the last
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kBlockRows = 64;  // of a consumer
constexpr int kTileQueries = kConsumers * kBlockRows;
constexpr int kStages = 2;
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr uint32_t kPanelRowBytes = 128;
static_assert(kTileQueries == kExpandedBlock.raw());

// Heads of one shape: a key has kNopePanels panels of 64 values and one of its rope part.
template <int kNopePanels_, int kValueDim_>
struct HeadShape {
  static constexpr int kNopePanels = kNopePanels_, kKeyPanels = kNopePanels + 1;
  static constexpr int kValueDim = kValueDim_, kValuePanels = kValueDim / kPanelColumns;
  // As many keys as registers allow: a thread has as many scores as half of them, beside kValueDim / 2
  // sums.
  static constexpr int kKeys = kValueDim > 128 ? 64 : 128;
  static constexpr uint32_t kQueryPanel = kTileQueries * kPanelRowBytes;
  static constexpr uint32_t kKeyPanel = kKeys * kPanelRowBytes;
  static constexpr int kScores = kKeys / 2, kSums = kValueDim / 2;  // of a thread
};

template <class Shape>
struct alignas(1024) Shared {
  std::byte q[Shape::kKeyPanels][Shape::kQueryPanel];
  std::byte keys[kStages][Shape::kKeyPanels][Shape::kKeyPanel];
  std::byte values[kStages][Shape::kValuePanels][Shape::kKeyPanel];
  std::byte slabs[kConsumerWarps][kSlabBytes];  // of results
  PhaseBarrier q_full, q_empty;
  PhaseBarrier keys_full[kStages], keys_empty[kStages];
  PhaseBarrier values_full[kStages], values_empty[kStages];
  PhaseBarrier items_full[kStages], items_empty[kStages];
  int32_t items[kStages];  // what the CTA takes next; -1: nothing
};

struct AttendArgs {
  CUtensorMap q, keys, rope, values;
  Expansion expansion;
  const uint8_t* poison;    // [rows]
  const int32_t* poisoned;  // [rows / kPoisonRows]
  int32_t* next_item;       // how many were taken besides the CTAs' first ones
  HeadsView out, lse;
  bool out_in_lines;  // bf16, in whole chunks of 16 bytes; otherwise f32
  float scale;        // of a score, times log2(e)
  int32_t num_heads;
  int32_t head_dim;  // of a query: columns from a head to the next
};

// 128 queries of a head.
struct Item {
  ExpandedTile tile;
  int32_t head;
};

// Item `number`: sequence by sequence, a sequence's tiles head by head.
__device__ inline Item ItemAt(const AttendArgs& args, int32_t number) {
  const ExpandedTile* tiles = args.expansion.tiles.data();
  const ExpandedTile& any = tiles[number / args.num_heads];  // of its sequence
  const int32_t in_sequence = number - any.first_tile * args.num_heads;
  return {.tile = tiles[any.first_tile + in_sequence % any.num_tiles],
          .head = in_sequence / any.num_tiles};
}

template <class Shape>
__device__ int NumTiles(const ExpandedTile& tile) {
  return (max(tile.most_visible(), 0) + Shape::kKeys - 1) / Shape::kKeys;
}

// ---- Producer ----

template <class Shape>
class Producer {
 public:
  __device__ Producer(const AttendArgs& args, Shared<Shape>& shared)
      : args_(args), shared_(shared) {}

  // Items go to whoever is done first: they are of different lengths.
  __device__ void Run() {
    const int32_t count = args_.expansion.counts[0].num_tiles * args_.num_heads;
    auto number = static_cast<int32_t>(blockIdx.x);
    while (true) {
      const bool is_one = number < count;
      Announce(is_one ? number : -1);
      if (!is_one) return;
      const auto next = static_cast<int32_t>(gridDim.x) + atomicAdd(args_.next_item, 1);
      Bring(ItemAt(args_, number));
      number = next;
    }
  }

 private:
  __device__ void Announce(int32_t number) {
    shared_.items_empty[items_.stage].Wait(items_.parity ^ 1);
    shared_.items[items_.stage] = number;
    shared_.items_full[items_.stage].Arrive();
    items_.Advance();
  }

  __device__ void Bring(const Item& item) {
    const int num_tiles = NumTiles<Shape>(item.tile);
    if (num_tiles == 0) return;
    CopyQueries(item);
    for (int tile = num_tiles - 1; tile >= 0; --tile) {
      const int32_t row = item.tile.first_row + tile * Shape::kKeys;
      CopyKeys(item.head, row);
      CopyValues(item.head, row);
      ring_.Advance();
    }
  }

  __device__ void CopyQueries(const Item& item) {
    shared_.q_empty.Wait(q_parity_ ^ 1);
    q_parity_ ^= 1;
    shared_.q_full.ArriveExpecting(sizeof(shared_.q));
    for (int p = 0; p < Shape::kKeyPanels; ++p) {
      CopyBox(SharedAddress(shared_.q[p]), &args_.q, item.head * args_.head_dim + p * kPanelColumns,
              item.tile.q_begin, shared_.q_full.Address());
    }
  }
  __device__ void CopyKeys(int32_t head, int32_t row) {
    auto& keys = shared_.keys[ring_.stage];
    PhaseBarrier& full = shared_.keys_full[ring_.stage];
    shared_.keys_empty[ring_.stage].Wait(ring_.parity ^ 1);
    full.ArriveExpecting(sizeof(keys));
    for (int p = 0; p < Shape::kNopePanels; ++p) {
      CopyBox(SharedAddress(keys[p]), &args_.keys, (head * Shape::kNopePanels + p) * kPanelColumns,
              row, full.Address());
    }
    CopyBox(SharedAddress(keys[Shape::kNopePanels]), &args_.rope, 0, row, full.Address());
  }
  __device__ void CopyValues(int32_t head, int32_t row) {
    auto& values = shared_.values[ring_.stage];
    PhaseBarrier& full = shared_.values_full[ring_.stage];
    shared_.values_empty[ring_.stage].Wait(ring_.parity ^ 1);
    full.ArriveExpecting(sizeof(values));
    for (int p = 0; p < Shape::kValuePanels; ++p) {
      CopyBox(SharedAddress(values[p]), &args_.values,
              (head * Shape::kValuePanels + p) * kPanelColumns, row, full.Address());
    }
  }

  const AttendArgs& args_;
  Shared<Shape>& shared_;
  RingPosition<kStages> ring_, items_;
  uint32_t q_parity_ = 0;
};

// ---- Consumers ----

template <class Shape>
class Consumer {
 public:
  __device__ Consumer(const AttendArgs& args, Shared<Shape>& shared, int number)
      : args_(args),
        shared_(shared),
        number_(number),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        first_row_(number * kBlockRows + thread_ / 32 * 16 + thread_ % 32 / 4) {}

  __device__ void Run() {
    if (number_ == 1) HandOver();  // the first consumer begins
    while (true) {
      shared_.items_full[items_.stage].Wait(items_.parity);
      const int32_t number = shared_.items[items_.stage];
      Free(shared_.items_empty[items_.stage]);
      items_.Advance();
      if (number < 0) break;
      AttendItem(number);
    }
    if (number_ == 0) TakeOver();  // barriers end as they began
  }

 private:
  // What the item is, is read again for its results: registers are scarce in between.
  __device__ __forceinline__ void AttendItem(int32_t number) {
    const Item item = ItemAt(args_, number);
    const int num_tiles = NumTiles<Shape>(item.tile);
    float sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
    Softmax softmax;
    if (num_tiles > 0) Attend(item, num_tiles, softmax, sums);
    Write(ItemAt(args_, number), softmax, sums);
  }

  static constexpr int kScores = Shape::kScores, kSums = Shape::kSums;
  static constexpr int kKeySteps = Shape::kKeys / 16;

  // Of the thread's two rows.
  struct Softmax {
    float top[2] = {-INFINITY, -INFINITY};  // of scores, not scaled yet
    float total[2] = {0.0f, 0.0f};          // of the thread's own weights
    float rescale[2];                       // what sums are to be multiplied with
  };
  // A tile's weights as operands of the values' product.
  struct Weights {
    uint32_t of[kKeySteps][4];
  };

  __device__ __forceinline__ void Attend(const Item& item, int num_tiles, Softmax& softmax,
                                         float (&sums)[kSums]) {
    const bool is_poisoned = IsPoisoned(item.tile);
    shared_.q_full.Wait(q_parity_);
    q_parity_ ^= 1;
    float scores[kScores];
    Weights weights;
    TakeOver();
    BeginScores(scores);
    HandOver();
    WaitForProducts<0>();
    HoldSums(scores);
    Free(shared_.keys_empty[keys_.stage]);
    keys_.Advance();
    if (num_tiles == 1) Free(shared_.q_empty);
    Weigh(item.tile, num_tiles - 1, is_poisoned, softmax, scores);
    Pack(scores, weights);
    for (int tile = num_tiles - 2; tile >= 0; --tile) {
      TakeOver();
      BeginScores(scores);
      BeginValues(weights, sums);
      HandOver();
      WaitForProducts<1>();
      HoldSums(scores);
      Free(shared_.keys_empty[keys_.stage]);
      keys_.Advance();
      if (tile == 0) Free(shared_.q_empty);
      Weigh(item.tile, tile, is_poisoned, softmax, scores);
      WaitForProducts<0>();
      HoldSums(sums);
      Free(shared_.values_empty[values_.stage]);
      values_.Advance();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] *= softmax.rescale[i / 2 % 2];
      Pack(scores, weights);
    }
    BeginValues(weights, sums);
    WaitForProducts<0>();
    HoldSums(sums);
    Free(shared_.values_empty[values_.stage]);
    values_.Advance();
  }

  // ---- Turns of the two consumers: barriers 2 and 3 ----

  __device__ void TakeOver() { SyncThreads<kConsumers * kWarpgroup>(2 + number_); }
  __device__ void HandOver() { ArriveAtThreads<kConsumers * kWarpgroup>(3 - number_); }

  // ---- Products ----

  __device__ __forceinline__ void BeginScores(float (&scores)[kScores]) {
    const int stage = Uniform(keys_.stage);
    shared_.keys_full[stage].Wait(keys_.parity);
    const uint32_t q = SharedAddress(shared_.q) + number_ * kBlockRows * kPanelRowBytes;
    const uint32_t keys = SharedAddress(shared_.keys[stage]);
    HoldSums(scores);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < Shape::kKeyPanels * 4; ++i) {
      MultiplyPanels(scores, PanelOperand(q, i / 4 * Shape::kQueryPanel + i % 4 * 32),
                     PanelOperand(keys, i / 4 * Shape::kKeyPanel + i % 4 * 32), i > 0);
    }
    CommitProducts();
  }

  __device__ __forceinline__ void BeginValues(const Weights& weights, float (&sums)[kSums]) {
    const int stage = Uniform(values_.stage);
    shared_.values_full[stage].Wait(values_.parity);
    const uint32_t values = SharedAddress(shared_.values[stage]);
    HoldSums(sums);
    BeginProducts();
#pragma unroll
    for (uint32_t step = 0; step < kKeySteps; ++step) {
      MultiplyRows(sums, weights.of[step],
                   PanelOperand(values, step * 16 * kPanelRowBytes, Shape::kKeyPanel));
    }
    CommitProducts();
  }

  __device__ void Free(PhaseBarrier& empty) {
    __syncwarp();
    if (thread_ % 32 == 0) empty.Arrive();
  }

  // ---- Weights ----

  __device__ bool IsPoisoned(const ExpandedTile& tile) const {
    const int first = tile.first_row / kPoisonRows;
    const int end = first + (tile.most_visible() + kPoisonRows - 1) / kPoisonRows;
    bool is_poisoned = false;
    for (int i = first + thread_; i < end; i += kWarpgroup) is_poisoned |= args_.poisoned[i] != 0;
    return SyncWarpgroupAny(4 + number_, is_poisoned);
  }

  // Scores to weights.
  __device__ __forceinline__ void Weigh(const ExpandedTile& item, int tile, bool is_poisoned,
                                        Softmax& softmax, float (&scores)[kScores]) {
    const int first_key = tile * Shape::kKeys;
    const int fewest =
        item.visible + number_ * kBlockRows;  // keys that a row of this consumer sees
    if (is_poisoned || first_key + Shape::kKeys > fewest) {
      Mask(item, first_key, is_poisoned, scores);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = softmax.top[half];
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) top = fmaxf(top, ScoreAt(scores, half, i));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float anchor = top == -INFINITY ? 0.0f : top * args_.scale;
      softmax.rescale[half] = Exp2Approx(__fmaf_rn(softmax.top[half], args_.scale, -anchor));
      softmax.top[half] = top;
      float total = softmax.total[half] * softmax.rescale[half];
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        float& score = ScoreAt(scores, half, i);
        score = Exp2Approx(__fmaf_rn(score, args_.scale, -anchor));
        total += score;
      }
      softmax.total[half] = total;
    }
  }

  static __device__ __forceinline__ float& ScoreAt(float (&scores)[kScores], int half, int i) {
    return scores[i / 2 * 4 + 2 * half + i % 2];
  }

  // Keys that a row does not see weigh nothing; those that are poisoned make all of it NaN.
  __device__ __forceinline__ void Mask(const ExpandedTile& item, int first_key, bool is_poisoned,
                                       float (&scores)[kScores]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int seen = item.visible + first_row_ + 8 * half - first_key;
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int key = i / 2 * 8 + thread_ % 4 * 2 + i % 2;
        float& score = ScoreAt(scores, half, i);
        if (is_poisoned && args_.poison[item.first_row + first_key + key] != 0) score = NAN;
        if (key >= seen) score = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void Pack(const float (&scores)[kScores], Weights& weights) {
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights.of[step][i] = PackBf16(scores[8 * step + 2 * i], scores[8 * step + 2 * i + 1]);
      }
    }
  }

  // ---- Results ----

  __device__ __forceinline__ void Write(const Item& item, const Softmax& softmax,
                                        const float (&sums)[kSums]) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = softmax.total[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      factor[half] = total == 0.0f ? 0.0f : __fdiv_rn(1.0f, total);
      WriteLse(item, first_row_ + 8 * half, softmax.top[half], total);
    }
    const auto pair_of = [&](int j, int half) {
      return float2{sums[4 * j + 2 * half] * factor[half],
                    sums[4 * j + 2 * half + 1] * factor[half]};
    };
    if (args_.out_in_lines) {
      const int warp = thread_ / 32, first = number_ * kBlockRows + warp * kSlabRows;
      StoreLines<Shape::kValuePanels * kSlabColumns>(
          SharedAddress(shared_.slabs[number_ * kWarpgroup / 32 + warp]), pair_of,
          [&](int row, int column) -> uint4* {
            if (first + row >= item.tile.q_count) return nullptr;
            return reinterpret_cast<uint4*>(
                args_.out.Row<Bf16>(item.tile.q_begin + first + row, item.head) + column);
          });
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row_ + 8 * half;
      if (row >= item.tile.q_count) continue;
      float* out = args_.out.Row<float>(item.tile.q_begin + row, item.head) + thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < Shape::kValueDim / 8; ++j) {
        const float2 pair = pair_of(j, half);
        out[8 * j] = pair.x;
        out[8 * j + 1] = pair.y;
      }
    }
  }

  __device__ void WriteLse(const Item& item, int row, float top, float total) const {
    constexpr float kLn2 = 0x1.62e43p-1f;
    if (args_.lse.data == nullptr || thread_ % 4 != 0 || row >= item.tile.q_count) return;
    *args_.lse.Row<float>(item.tile.q_begin + row, item.head) =
        total == 0.0f ? -INFINITY : __fmaf_rn(top * args_.scale, kLn2, logf(total));
  }

  const AttendArgs& args_;
  Shared<Shape>& shared_;
  const int number_;
  const int thread_;
  const int first_row_;  // of the tile's queries; the thread's other one is 8 further
  RingPosition<kStages> keys_, values_, items_;
  uint32_t q_parity_ = 0;
};

template <class Shape>
__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MhaAttend(const __grid_constant__ AttendArgs args) {
  std::byte* const memory = LaunchedShared<1024>();
  auto& shared = *reinterpret_cast<Shared<Shape>*>(memory);
  if (threadIdx.x == 0) {
    shared.q_full.Init(1);
    shared.q_empty.Init(kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      shared.keys_full[stage].Init(1);
      shared.values_full[stage].Init(1);
      shared.keys_empty[stage].Init(kConsumerWarps);
      shared.values_empty[stage].Init(kConsumerWarps);
      shared.items_full[stage].Init(1);
      shared.items_empty[stage].Init(kConsumerWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  TakeTurn();
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role == kConsumers) {
    GiveRegistersBack<kProducerRegisters>();
    if (threadIdx.x % kWarpgroup == 0) Producer<Shape>(args, shared).Run();
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consumer<Shape>(args, shared, role).Run();
  }
}

// ---- Launch ----

CUtensorMap MapOf(const ConstTensorView& view, int32_t box_rows) {
  return MakeTensorMap({.data = reinterpret_cast<const std::byte*>(view.Address<Bf16>()),
                        .rows = view.dim(0),
                        .columns = view.dim(1),
                        .row_bytes = view.stride(0) * 2,
                        .box_rows = box_rows,
                        .box_columns = kPanelColumns});
}

template <class Shape>
void LaunchHeads(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream) {
  const int64_t num_tokens = args.q.dim(0), heads = args.q.dim(1), head_dim = args.q.dim(2);
  const ConstTensorView q =
      ConstTensorView(args.q.Address<Bf16>(), {num_tokens, heads * head_dim}, args.q.side())
          .WithRowStride(args.q.stride(0));
  constexpr float kLog2E = 0x1.715476p0f;
  const AttendArgs attend{.q = MapOf(q, kTileQueries),
                          .keys = MapOf(keys.keys, Shape::kKeys),
                          .rope = MapOf(keys.rope, Shape::kKeys),
                          .values = MapOf(keys.values, Shape::kKeys),
                          .expansion = args.expansion,
                          .poison = keys.poison.data(),
                          .poisoned = keys.poisoned.data(),
                          .next_item = keys.next_item.data(),
                          .out = HeadsOf(args.out),
                          .lse = HeadsOf(args.lse),
                          .out_in_lines = args.out.dtype() == DType::kBf16,
                          .scale = args.scale * kLog2E,
                          .num_heads = static_cast<int32_t>(heads),
                          .head_dim = static_cast<int32_t>(head_dim)};
  const auto kernel = MhaAttend<Shape>;
  constexpr int kBytes = static_cast<int>(sizeof(Shared<Shape>));
  static_assert(kBytes <= 232448);
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MhaAttend: shared memory");
  constexpr int64_t kMultiprocessors = 132;  // of a Hopper GPU; another number changes no bit
  const int64_t items = std::ssize(args.expansion.tiles) * heads;
  LaunchAhead("MhaAttend", kernel,
              {static_cast<unsigned>(std::min(kMultiprocessors, items)), kRoles * kWarpgroup,
               static_cast<size_t>(kBytes)},
              stream, attend);
}

}  // namespace

void LaunchMhaAttend(const AttendExpandedArgs& args, const ExpandedKeys& keys,
                     const Stream& stream) {
  if (args.shape.value_dim == 64) return LaunchHeads<HeadShape<1, 64>>(args, keys, stream);
  if (args.shape.value_dim == 128) return LaunchHeads<HeadShape<2, 128>>(args, keys, stream);
  LaunchHeads<HeadShape<3, 256>>(args, keys, stream);
}

}  // namespace quire::cuda
