// Products of many rows: a CTA per multiprocessor, which takes tile after tile.
//
//   producer    rows of x and of w in boxes; as an index says, rows of x one by one; of codes, their scales
//   consumers   two, with 64 rows each: sums += x w^T, then y
//
// The producer goes on to the next tile while consumers write this one.
//
// With kPair two CTAs are a cluster and take neighbouring row tiles of the same outputs: L2 gives their weights once, half
// at the bidding of each, to both. Both go through as many steps, with rows or without, and stages are freed in both.
#include "kernels/cuda/gemm/gemm_warpgroup.h"

#include <algorithm>
#include <type_traits>

#include "base/maths.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/gemm/gemm_boxes.cuh"
#include "kernels/cuda/gemm/gemm_store.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/lines.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace {

constexpr int kConsumers = 2;
constexpr int kRoles = kConsumers + 1;  // the producer is the last
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kBlockRows = 64;  // of a consumer
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;

// A tile has 256 outputs of bf16, and 128 where a consumer keeps a range's sums beside the total. Of e4m3, whose
// every 128 inputs have scales of their own, it has 128 where a consumer keeps two sets of their sums beside the
// total, or a set and a range's, and 192 where it keeps one.
template <TileMath kMath_, int kOutputs_, bool kHasRanges_, bool kIndexed_, bool kPair_>
struct Products {
  static constexpr TileMath kMath = kMath_;
  static constexpr int kOutputs = kOutputs_;
  static constexpr bool kHasRanges = kHasRanges_, kIndexed = kIndexed_, kPair = kPair_;
  static constexpr int kCtas = kPair ? 2 : 1;  // of a cluster
  static constexpr int kInputBytes = kMath == TileMath::kFp8 ? 1 : 2;
  static constexpr int kStepInputs = kRowBytes / kInputBytes;  // a row of a panel
  static constexpr int kTileRows = kConsumers * kBlockRows;
  static constexpr int kProducerThreads = kWarpgroup;
  static constexpr bool kReadsOnce = false, kBeginsAhead = false;
  static constexpr bool kXInBoxes = !kIndexed, kFencesCopies = kIndexed;
  static constexpr bool kOneRange = false, kBringsScales = kMath == TileMath::kFp8;
  static constexpr bool kTellsPlaces = true;
  // Of e4m3 there is shared memory for all of a warp's y, which the copy engine stores while the next tile is multiplied.
  static constexpr bool kStoresBoxes = kMath == TileMath::kFp8;
};

struct NoScales {};

template <class P>
struct SharedStages {
  static constexpr int kStages = P::kOutputs > 128 ? 4 : P::kStoresBoxes ? 5 : 6;
  static constexpr int kSlabs = P::kStoresBoxes ? kGroupsOf<P::kOutputs> : 1;

  BoxStage<P> stages[kStages];
  alignas(1024) std::byte slabs[kConsumerWarps][kSlabs * kSlabBytes];  // of y
  PhaseBarrier full[kStages], empty[kStages];
  TilePlace places[kStages];  // of the tile that begins with the stage
  ExpertTiles<P::kTileRows, kMaxExperts, P::kPair> experts;
  std::conditional_t<P::kBringsScales, StageScales<P>, NoScales> scales[kStages];
};

// Whether rows of y are bf16 in whole chunks of 16 bytes.
__host__ __device__ inline bool HasRowsInChunks(const TileParams& p) {
  return !p.y_is_f32 && p.bias == nullptr && p.outputs % 8 == 0 && p.y_stride % 8 == 0 &&
         p.y_batch % 8 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
}

// Boxes of y as a warp stores them; of no use where its rows are in no chunks. Of codes y is of one matrix, or of
// experts, whose rows follow each other.
template <class P>
CUtensorMap BoxesOfY(const TileParams& p) {
  if (!P::kStoresBoxes || p.gated || !HasRowsInChunks(p)) return {};
  const int64_t row_bytes = p.y_stride * 2;
  return MakeTensorMap({.data = reinterpret_cast<const std::byte*>(p.y),
                        .rows = p.rows,
                        .columns = p.outputs,
                        .row_bytes = row_bytes,
                        .box_rows = kSlabRows,
                        .box_columns = kSlabColumns,
                        .matrices = 1,
                        .matrix_bytes = p.rows * row_bytes});
}

template <class P>
class Consumer {
 public:
  // y: boxes of it, where it is stored in boxes.
  __device__ Consumer(const TileParams& p, const CUtensorMap& y, SharedStages<P>& shared,
                      int number)
      : p_(p),
        y_(y),
        shared_(shared),
        number_(number),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  // The next tile, whose place comes with its first stage.
  __device__ void RunNext() {
    WaitForStage();
    const TilePlace at = NextPlace();
    // By a vote, which the compiler knows to be the same for all lanes: products need that.
    if (!__any_sync(~0u, at.row + number_ * kBlockRows < at.row_end)) return SkipTile();
    float total[kSums];
    for (int i = 0; i < p_.num_splits; ++i) {
      const InputRange<P::kStepInputs> range(p_, i);
      if constexpr (P::kHasRanges) {
        float sums[kSums];
        Multiply(at, range, sums);
#pragma unroll
        for (int e = 0; e < kSums; ++e) total[e] = i == 0 ? sums[e] : total[e] + sums[e];
      } else {
        Multiply(at, range, total);
      }
    }
    if (p_.gated) {
      Store<true>(at, total);
    } else {
      Store<false>(at, total);
    }
  }

  // When all tiles are done: the copy engine has read what it stores.
  __device__ void End() const {
    if (P::kStoresBoxes && thread_ % 32 == 0) WaitForStores();
  }

 private:
  static constexpr int kOutputs = P::kOutputs;
  static constexpr int kSums = kOutputs / 2;  // of a thread: two rows, a quarter of the outputs
  static constexpr int kStages = SharedStages<P>::kStages;

  __device__ __forceinline__ void WaitForStage() const {
    shared_.full[Uniform(ring_.stage)].Wait(ring_.parity);
  }

  __device__ TilePlace NextPlace() const {
    const TilePlace& at = shared_.places[ring_.stage];
    return {.batch = Uniform(at.batch),
            .row = Uniform(at.row),
            .row_end = Uniform(at.row_end),
            .first_output = Uniform(at.first_output)};
  }

  __device__ void SkipTile() {
    for (int i = 0; i < p_.num_splits; ++i) {
      for (int step = InputRange<P::kStepInputs>(p_, i).num_steps(); step > 0; --step) {
        WaitForStage();
        ring_.Advance();
        FreeStage();
      }
    }
  }

  using Range = InputRange<P::kStepInputs>;

  __device__ __forceinline__ void Multiply(const TilePlace& at, const Range& range,
                                           float (&sums)[kSums]) {
#pragma unroll
    for (int e = 0; e < kSums; ++e) sums[e] = 0.0f;
    if constexpr (P::kMath == TileMath::kFp8) {
      MultiplyBlocks(at, range, sums);
    } else {
      MultiplyAll(at, range, sums);
    }
  }

  // At a tile's end the second consumer leaves its last steps until the first has begun all of its own: then one
  // writes y while the other multiplies. They would end at once otherwise, and nobody would multiply.
  //
  // Their stages are there already, so there must be more stages than such steps, and one that is freed late. A tile of
  // fewer steps than stages could end before the second consumer has come to the last one's barrier.
  static constexpr int kLateSteps = 2;
  static constexpr int kFirstHasBegun = 1;  // a barrier of both consumers
  static_assert(kLateSteps + 1 < kStages);
  struct Turns {
    int waits_at, arrives_at;  // steps, or none
  };
  __device__ __forceinline__ Turns TurnsOf(const TilePlace& at, int num_steps) const {
    const bool are_taken =
        !P::kHasRanges && num_steps >= kStages && __any_sync(~0u, at.row + kBlockRows < at.row_end);
    return {.waits_at = are_taken && number_ == 1 ? num_steps - kLateSteps : -1,
            .arrives_at = are_taken && number_ == 0 ? num_steps - 1 : -1};
  }
  // Before a step of codes. Of its last the first consumer says that it begins when it has begun the one before, for which
  // the second has freed a stage since the last tile's barrier: never twice at one.
  __device__ __forceinline__ void TakeTurns(const Turns& turns, int step) {
    if (step == turns.waits_at) SyncThreads<kConsumers * kWarpgroup>(kFirstHasBegun);
    if (step == turns.arrives_at) ArriveAtThreads<kConsumers * kWarpgroup>(kFirstHasBegun);
  }

  // sums += those of the range's inputs.
  __device__ __forceinline__ void MultiplyAll(const TilePlace& at, const Range& range,
                                              float (&sums)[kSums]) {
    HoldSums(sums);
    const int num_steps = range.num_steps();
    const Turns turns = TurnsOf(at, num_steps);
    for (int step = 0; step < num_steps; ++step) {
      if (step == turns.waits_at) SyncThreads<kConsumers * kWarpgroup>(kFirstHasBegun);
      const int stage = Uniform(ring_.stage);
      WaitForStage();
      const uint32_t x = SharedAddress(shared_.stages[stage].x) + number_ * kBlockRows * kRowBytes;
      const uint32_t w = SharedAddress(shared_.stages[stage].w);
      BeginProducts();
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        MultiplyPanels(sums, PanelOperand(x, i * 32), PanelOperand(w, i * 32), true);
      }
      CommitProducts();
      if (step == turns.arrives_at) ArriveAtThreads<kConsumers * kWarpgroup>(kFirstHasBegun);
      ring_.Advance();
      WaitForProducts<1>();  // those of the step before are done
      if (step > 0) FreeStage();
    }
    WaitForProducts<0>();
    HoldSums(sums);
    if (num_steps > 0) FreeStage();
  }

  // ---- Codes ----

  // The scales of 128 inputs: of the thread's rows, and of w, those of equal parts of the sums.
  struct Scales {
    float x[2], w[StageScales<P>::kScalesOfW];

    __device__ float of(int half, int part) const { return x[half] * w[part]; }
  };
  __device__ __forceinline__ Scales ScalesOf(int stage) const {
    const auto& from = shared_.scales[stage];
    const int row = number_ * kBlockRows + thread_ / 32 * 16 + thread_ % 32 / 4;
    Scales scales{.x = {from.x[0][row], from.x[0][row + 8]}, .w = {}};
#pragma unroll
    for (int i = 0; i < StageScales<P>::kScalesOfW; ++i) scales.w[i] = from.w[0][i];
    return scales;
  }

  // sums = those of the next stage's 128 inputs, whose scales it returns; the products are under way.
  //
  // Before the products nothing is asked of memory, nor, but for a tile's place before its first block, of shared memory
  // since the block before: the compiler would have them wait for it, wherever the scales are used.
  __device__ __forceinline__ Scales BeginBlock(float (&sums)[kSums]) {
    const int stage = Uniform(ring_.stage);
    shared_.full[stage].Wait(ring_.parity);
    const uint32_t x = SharedAddress(shared_.stages[stage].x) + number_ * kBlockRows * kRowBytes;
    const uint32_t w = SharedAddress(shared_.stages[stage].w);
    HoldSums(sums);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      MultiplyCodes(sums, PanelOperand(x, i * 32), PanelOperand(w, i * 32), i > 0);
    }
    CommitProducts();
    ring_.Advance();
    return ScalesOf(stage);
  }

  // total += sums, which are there, times their scales. With `gated` the first half of the sums is gate's.
  __device__ __forceinline__ void FoldBlock(float (&sums)[kSums], const Scales& scales,
                                            float (&total)[kSums]) {
    constexpr int kOfScale = kSums / StageScales<P>::kScalesOfW;
    HoldSums(sums);
    FreeStage();
#pragma unroll
    for (int e = 0; e < kSums; ++e) {
      total[e] = __fmaf_rn(scales.of(e / 2 % 2, e / kOfScale), sums[e], total[e]);
    }
  }

  // total += the sums of the range's blocks of 128 inputs, each times its scales.
  __device__ __forceinline__ void MultiplyBlocks(const TilePlace& at, const Range& range,
                                                 float (&total)[kSums]) {
    const int num_steps = range.num_steps();
    if (num_steps == 0) return;
    if constexpr (P::kHasRanges || kOutputs > 128) {
      MultiplyInTurn(at, num_steps, total);
    } else {
      MultiplyAhead(at, num_steps, total);
    }
  }

  // Where sums of a range are beside the total, or 192 outputs' are, there are no registers for another block's: one
  // consumer multiplies while the other folds.
  __device__ __forceinline__ void MultiplyInTurn(const TilePlace& at, int num_steps,
                                                 float (&total)[kSums]) {
    const Turns turns = TurnsOf(at, num_steps);
    for (int step = 0; step < num_steps; ++step) {
      TakeTurns(turns, step);
      float sums[kSums];
      const Scales scales = BeginBlock(sums);
      WaitForProducts<0>();
      FoldBlock(sums, scales, total);
    }
  }

  // A block is under way while the one before gets its scales. Two sets of sums take turns, without a branch between the
  // beginning of a block and its end: at one the compiler would have products wait for each other.
  __device__ __forceinline__ void MultiplyAhead(const TilePlace& at, int num_steps,
                                                float (&total)[kSums]) {
    const Turns turns = TurnsOf(at, num_steps);
    float even[kSums], odd[kSums];
    const auto begin = [&](int step, float(&sums)[kSums]) {
      TakeTurns(turns, step);
      return BeginBlock(sums);
    };
    Scales of_even = begin(0, even), of_odd;
    int step = 0;
#pragma unroll 1
    for (; step + 2 < num_steps; step += 2) {
      of_odd = begin(step + 1, odd);
      WaitForProducts<1>();
      FoldBlock(even, of_even, total);
      of_even = begin(step + 2, even);
      WaitForProducts<1>();
      FoldBlock(odd, of_odd, total);
    }
    if (step + 1 < num_steps) {
      of_odd = begin(step + 1, odd);
      WaitForProducts<1>();
      FoldBlock(even, of_even, total);
      WaitForProducts<0>();
      FoldBlock(odd, of_odd, total);
    } else {
      WaitForProducts<0>();
      FoldBlock(even, of_even, total);
    }
  }

  // The first that is read and not free yet: its products have ended. For both producers of a pair, since each brings
  // weights to both.
  __device__ __forceinline__ void FreeStage() {
    // Of scales every thread arrives: racecheck does not see that a lane speaks for its warp.
    if constexpr (P::kBringsScales) {
      shared_.empty[free_.stage].Arrive();
      if (P::kPair && thread_ % 32 == 0) shared_.empty[free_.stage].ArriveLooselyAt(peer_);
    } else {
      __syncwarp();
      if (thread_ % 32 == 0) {
        shared_.empty[free_.stage].Arrive();
        if constexpr (P::kPair) shared_.empty[free_.stage].ArriveLooselyAt(peer_);
      }
    }
    free_.Advance();
  }

  // Two neighbouring outputs of the thread's row `half`: columns [8 j, + 8) of y are of the quad's threads.
  template <bool kGated>
  static __device__ __forceinline__ float2 PairOf(const float (&sums)[kSums], int j, int half) {
    const float2 pair{sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
    if constexpr (!kGated) return pair;
    const float* up = sums + kSums / 2 + 4 * j + 2 * half;
    return {SiluByReciprocal(pair.x) * up[0], SiluByReciprocal(pair.y) * up[1]};
  }

  __device__ bool IsInChunks() const { return HasRowsInChunks(p_); }
  __device__ int FirstRowOfWarp(const TilePlace& at) const {
    return at.row + number_ * kBlockRows + thread_ / 32 * kSlabRows;
  }
  __device__ uint32_t SlabsOfWarp() const {
    return SharedAddress(shared_.slabs[number_ * kWarpgroup / 32 + thread_ / 32]);
  }

  template <bool kGated>
  __device__ __forceinline__ void StoreInLines(const TilePlace& at, const float (&sums)[kSums]) {
    const int first_row = FirstRowOfWarp(at);
    const int64_t batch = p_.offsets == nullptr ? at.batch : 0;
    uint16_t* y = reinterpret_cast<uint16_t*>(p_.y) + batch * p_.y_batch + at.first_output;
    StoreLines<OutputsOfTile<kGated>()>(
        SlabsOfWarp(), [&](int j, int half) { return PairOf<kGated>(sums, j, half); },
        [&](int row, int column) -> uint4* {
          if (first_row + row >= at.row_end || at.first_output + column >= p_.outputs) {
            return nullptr;
          }
          return reinterpret_cast<uint4*>(y + (first_row + row) * p_.y_stride + column);
        });
  }

  // Any y.
  template <bool kGated>
  __device__ __forceinline__ void StorePairs(const TilePlace& at, const float (&sums)[kSums]) {
    const int64_t batch = p_.offsets == nullptr ? at.batch : 0;
    const int column = at.first_output + thread_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row =
          at.row + number_ * kBlockRows + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * half;
      if (row >= at.row_end) continue;
#pragma unroll
      for (int j = 0; j < OutputsOfTile<kGated>() / 8; ++j) {
        const float2 pair = PairOf<kGated>(sums, j, half);
        StorePair(p_, batch, row, column + 8 * j, pair.x, pair.y);
      }
    }
  }

  __device__ __forceinline__ void StoreInBoxes(const TilePlace& at, const float (&sums)[kSums]) {
    StoreSlabs<kOutputs>(
        SlabsOfWarp(), [&](int j, int half) { return PairOf<false>(sums, j, half); },
        [&](uint32_t slab, int column) {
          StoreBox(&y_, slab, at.first_output + column, FirstRowOfWarp(at), 0);
        });
  }

  template <bool kGated>
  __device__ __forceinline__ void Store(const TilePlace& at, const float (&sums)[kSums]) {
    if constexpr (P::kStoresBoxes && !kGated) {
      if (IsInChunks() && __all_sync(~0u, FirstRowOfWarp(at) + kSlabRows <= at.row_end)) {
        return StoreInBoxes(at, sums);
      }
      if (thread_ % 32 == 0) WaitForStores();  // lines go by way of a slab
    }
    if (IsInChunks()) {
      StoreInLines<kGated>(at, sums);
    } else {
      StorePairs<kGated>(at, sums);
    }
  }
  template <bool kGated>
  static constexpr int OutputsOfTile() {
    return kGated ? kOutputs / 2 : kOutputs;
  }

  const TileParams& p_;
  const CUtensorMap& y_;
  SharedStages<P>& shared_;
  const int number_;
  const int thread_;
  // The other CTA of a pair.
  const uint32_t peer_ = P::kPair ? RankInCluster() ^ 1 : 0;
  RingPosition<kStages> ring_;  // what is read next
  RingPosition<kStages> free_;  // what is free next: at most one behind
};

template <class P>
__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    WarpgroupTiles(const __grid_constant__ TileParams p, const __grid_constant__ ProductBoxes boxes,
                   const __grid_constant__ CUtensorMap y) {
  std::byte* const memory = LaunchedShared<1024>();
  auto& shared = *reinterpret_cast<SharedStages<P>*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < shared.kStages; ++stage) {
      shared.full[stage].Init(BoxProducer<P, SharedStages<P>>::kArrivals);
      shared.empty[stage].Init((P::kBringsScales ? 32 : 1) * kConsumerWarps +
                               (P::kCtas - 1) * kConsumerWarps);
    }
    FenceBarrierInit();
  }
  if constexpr (P::kPair) ArriveAtCluster();  // with barriers that the other uses
  const int tile_outputs = OutputsOfY<P::kOutputs>(p.gated);
  TakeTurn();
  if (p.offsets != nullptr) {
    shared.experts.Load(p, kRoles * kWarpgroup);
    if (blockIdx.x == 0) ReportBadOffsets(p, kRoles * kWarpgroup);
    __syncthreads();  // offsets are there
    if (threadIdx.x < 32) shared.experts.Count(p, tile_outputs);
  }
  __syncthreads();  // barriers are there, and tiles are counted
  if constexpr (P::kPair) WaitForCluster();
  const Tiles tiles(p, tile_outputs, shared.experts);
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role == kConsumers) {
    GiveRegistersBack<kProducerRegisters>();
    BoxProducer<P, SharedStages<P>> producer(p, boxes.w, P::kXInBoxes ? &boxes.x : nullptr, shared);
    RunTiles(tiles, producer);
    producer.End();
  } else {
    TakeRegisters<kConsumerRegisters>();
    Consumer<P> consumer(p, y, shared, role);
    for (int i = NumTilesOfCta(tiles); i > 0; --i) consumer.RunNext();
    consumer.End();
  }
}

template <class P>
void LaunchKernel(const TileParams& p, const Stream& stream) {
  const auto kernel = WarpgroupTiles<P>;
  constexpr int kBytes = static_cast<int>(sizeof(SharedStages<P>));
  static_assert(kBytes <= 227 * 1024);  // what a multiprocessor has for a CTA
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "gemm: shared memory of warpgroups");
  static_assert(kMultiprocessors % P::kCtas == 0);
  const int64_t ctas =
      std::min<int64_t>(kMultiprocessors, RoundUp(MostTiles<P>(p), int64_t{P::kCtas}));
  LaunchAhead("gemm: warpgroups", kernel,
              {.grid = dim3(static_cast<unsigned>(ctas)),
               .block = dim3(kRoles * kWarpgroup),
               .shared_bytes = static_cast<size_t>(kBytes),
               .cluster = P::kCtas},
              stream, p, BoxesFor<P>(p), BoxesOfY<P>(p));
}

template <TileMath kMath, int kOutputs, bool kPair>
void LaunchProducts(const TileParams& p, const Stream& stream) {
  if (p.num_splits > 1) return LaunchKernel<Products<kMath, 128, true, false, kPair>>(p, stream);
  if (p.x_index == nullptr) {
    return LaunchKernel<Products<kMath, kOutputs, false, false, kPair>>(p, stream);
  }
  LaunchKernel<Products<kMath, kOutputs, false, true, kPair>>(p, stream);
}

}  // namespace

void LaunchWarpgroupTiles(const TileParams& p, TileSize size, const Stream& stream) {
  if (size == TileSize::kPrefillPair) return LaunchProducts<TileMath::kBf16, 256, true>(p, stream);
  LaunchProducts<TileMath::kBf16, 256, false>(p, stream);
}

void LaunchWarpgroupCodes(const TileParams& p, TileSize size, const Stream& stream) {
  switch (size) {
    case TileSize::kPrefillWide:
      return LaunchProducts<TileMath::kFp8, 192, false>(p, stream);
    case TileSize::kPrefillPair:
      return LaunchProducts<TileMath::kFp8, 128, true>(p, stream);
    case TileSize::kPrefillWidePair:
      return LaunchProducts<TileMath::kFp8, 192, true>(p, stream);
    default:
      return LaunchProducts<TileMath::kFp8, 128, false>(p, stream);
  }
}

}  // namespace quire::cuda
