// Products of few rows, of codes and of experts' bf16: two CTAs a multiprocessor, which take tile after tile.
//
//   producer    a warp: rows of w in boxes; rows of x in boxes, or one by one, as an index says and those of bf16
//   consumers   a warpgroup: sums += w x^T, since w has the 64 rows of a product; then y
//
// The producer is stages ahead, over the ends of tiles too: memory is asked for weights without a pause, from the first
// tile to the last.
#include "kernels/cuda/gemm/gemm_decode.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/gemm/gemm_boxes.cuh"
#include "kernels/cuda/gemm/gemm_columns.cuh"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace {

constexpr int kMostDecodeExperts = 512;

// What gemm_boxes.cuh asks of a tile. A consumer's product has 64 rows of w: of gate and up, those of gate, then those of
// up.
template <TileMath kMathOf, int kTileRowsOf, int kOutputsOf, bool kIndexedOf>
struct DecodeTile {
  static constexpr TileMath kMath = kMathOf;
  static constexpr bool kIsCodes = kMath == TileMath::kFp8, kIndexed = kIndexedOf;
  static constexpr int kTileRows = kTileRowsOf, kOutputs = kOutputsOf;
  static constexpr int kBlocks = kOutputs / kColumnOutputs;
  // A tile's products have as many columns as its rows need: 16, 32 or 64. Those of codes all of the tile's.
  static constexpr int kFewestColumns = kIsCodes ? kTileRows : 16;
  static constexpr int kInputBytes = kIsCodes ? 1 : 2;
  // Of few rows of codes 256 bytes at a time; of more 128, so that several stages find room beside x.
  static constexpr int kPanels = kIsCodes && kTileRows <= 16 ? 2 : 1;
  static constexpr int kStepInputs = kPanels * kRowBytes / kInputBytes;
  static constexpr int kProducerThreads = 32;
  static constexpr int kConsumerThreads = kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;
  static constexpr bool kReadsOnce = true, kBeginsAhead = true;
  static constexpr bool kOneRange = true, kBringsScales = kIsCodes, kPair = false;
  static constexpr bool kTellsPlaces = false;
  // A warp that copied rows of codes one by one would take longer for a step than memory.
  static constexpr bool kXInBoxes = kIsCodes && !kIndexed, kFencesCopies = false;
  // Fewer outputs are for dense products, so that there are more CTAs.
  static constexpr bool kHasRanges = kBlocks == 1, kHasExperts = kBlocks == 2;
  static constexpr int kCtas = 2;  // a multiprocessor: while one folds, the other multiplies
  static_assert(!kIsCodes || kRowBytes == kScaleBlock);  // a panel's inputs have one scale
  static_assert(kScaleBlock % kOutputs == 0);  // a tile's outputs are of one row of blocks
  static_assert(kBlocks == 1 || kBlocks == 2);
};

// Half of a multiprocessor's memory: of 16 rows 96 KiB of weights are under way, where 4.8 TB/s times a microsecond of
// latency need 36, and kernels beside this one and the next find room.
template <class T>
struct DecodeStages {
  static constexpr int kBytesOfTwo =
      113 * 1024;  // of each of two CTAs, with 1 KiB that it has besides
  static constexpr int kStages = (kBytesOfTwo - 5 * 1024) / sizeof(BoxStage<T>);
  static_assert(kStages >= 3);

  BoxStage<T> stages[kStages];
  StageScales<T> scales[kStages];
  PhaseBarrier full[kStages], empty[kStages];
  ExpertTiles<T::kTileRows, T::kHasExperts ? kMostDecodeExperts : 0, T::kPair> experts;
};

template <class T>
class DecodeConsumer {
 public:
  __device__ DecodeConsumer(const TileParams& p, DecodeStages<T>& shared)
      : p_(p), shared_(shared) {}

  __device__ void Run(const TilePlace& at) {
    Sums total = {};
    Multiply(at, total);
    if constexpr (T::kHasRanges) {
      if (p_.num_splits > 1) return PutSums(total);
    }
    StoreColumns(p_, at, total);
  }

 private:
  using Stage = BoxStage<T>;
  static constexpr int kGroups = T::kTileRows / 8;  // of 8 rows
  using Sums = float[T::kBlocks][4 * kGroups];      // as gemm_columns.cuh lays them out

  // total += the products of the range's inputs, in as few columns as hold the tile's rows.
  template <int kColumns = T::kTileRows>
  __device__ __forceinline__ void Multiply(const TilePlace& at, Sums& total) {
    if constexpr (kColumns > T::kFewestColumns) {
      if (at.row + kColumns / 2 >= at.row_end) return Multiply<kColumns / 2>(at, total);
    }
    const InputRange<T::kStepInputs> range(p_, at.split);
    for (int input = range.begin; input < range.end; input += T::kStepInputs) {
      const int stage = Uniform(ring_.stage);
      shared_.full[stage].Wait(ring_.parity);
      // Copies of x are of threads that did not wait for them.
      if constexpr (!T::kXInBoxes) FenceForProducts();
      if constexpr (T::kIsCodes) {
        AddCodes(stage, (range.end - input + kScaleBlock - 1) / kScaleBlock, total);
      } else {
        AddValues<kColumns>(stage, total);
      }
    }
  }

  // total += the products of a stage. It is free as soon as they have ended: memory is what there is to wait for, and a
  // stage kept for the next one's products would be one that asks for nothing.
  template <int kColumns>
  __device__ __forceinline__ void AddValues(int stage, Sums& total) {
    static_assert(T::kPanels == 1);
    HoldColumns<kColumns>(total);
    BeginProducts();
    MultiplyColumns<T::kMath, kColumns>(SharedAddress(shared_.stages[stage].x),
                                        SharedAddress(shared_.stages[stage].w), true, total);
    CommitProducts();
    WaitForProducts<0>();
    FreeStage();
    HoldColumns<kColumns>(total);
  }

  // The scales of a panel: of the thread's rows of x, and of gate and up.
  struct Scales {
    float x[2 * kGroups], w[2];
  };
  __device__ __forceinline__ Scales ScalesOf(int stage, int panel) const {
    const StageScales<T>& from = shared_.scales[stage];
    Scales scales;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const auto pair = *reinterpret_cast<const float2*>(&from.x[panel][8 * j + lane_ % 4 * 2]);
      scales.x[2 * j] = pair.x;
      scales.x[2 * j + 1] = pair.y;
    }
    scales.w[0] = from.w[panel][0];
    scales.w[1] = from.w[panel][1];
    return scales;
  }

  // total += the sums of a stage's panels, of which the first `count` are there, each times its scales. The others are
  // multiplied too, whatever they are, and left.
  __device__ __forceinline__ void AddCodes(int stage, int count, Sums& total) {
    const uint32_t x = SharedAddress(shared_.stages[stage].x);
    const uint32_t w = SharedAddress(shared_.stages[stage].w);
    float sums[T::kPanels][T::kBlocks][4 * kGroups];
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) HoldColumns<T::kTileRows>(sums[panel]);
    BeginProducts();
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      MultiplyColumns<T::kMath, T::kTileRows>(x + panel * Stage::kXPanelBytes,
                                              w + panel * Stage::kWPanelBytes, false, sums[panel]);
      CommitProducts();
    }
    Scales scales[T::kPanels];
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) scales[panel] = ScalesOf(stage, panel);
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      if (panel + 1 < T::kPanels) {
        WaitForProducts<1>();
      } else {
        WaitForProducts<0>();
        FreeStage();
      }
      HoldColumns<T::kTileRows>(sums[panel]);
      if (panel < count) Fold(scales[panel], sums[panel], total);
    }
  }

  // As the warpgroup kernel does it (gemm_warpgroup.cu), so that bits are the same.
  static __device__ __forceinline__ void Fold(const Scales& scales, const Sums& sums, Sums& total) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
      for (int e = 0; e < 4 * kGroups; ++e) {
        total[block][e] = __fmaf_rn(scales.x[e / 4 * 2 + e % 2] * scales.w[block], sums[block][e],
                                    total[block][e]);
      }
    }
  }

  // The one that was read. Every thread arrives: racecheck does not see that a lane speaks for its warp.
  __device__ __forceinline__ void FreeStage() {
    shared_.empty[ring_.stage].Arrive();
    ring_.Advance();
  }

  // For AddRanges, over the stages.
  __device__ __forceinline__ void PutSums(const Sums& sums) {
    SyncWarpgroup(1);  // all products have read the last stage
    auto* const to = reinterpret_cast<float*>(&shared_.stages);
#pragma unroll
    for (int e = 0; e < 4 * kGroups; ++e) {
      const int row = e / 4 * 8 + lane_ % 4 * 2 + e % 2;
      to[row * T::kOutputs + 16 * warp_ + e / 2 % 2 * 8 + lane_ / 4] = sums[0][e];
    }
  }

  const TileParams& p_;
  DecodeStages<T>& shared_;
  const int warp_ = static_cast<int>(threadIdx.x) / 32, lane_ = static_cast<int>(threadIdx.x) % 32;
  RingPosition<DecodeStages<T>::kStages> ring_;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 2)
    DecodeTiles(const __grid_constant__ TileParams p, const __grid_constant__ ProductBoxes boxes) {
  std::byte* const memory = LaunchedShared<1024>();
  auto& shared = *reinterpret_cast<DecodeStages<T>*>(memory);
  using Filler = BoxProducer<T, DecodeStages<T>>;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < shared.kStages; ++stage) {
      shared.full[stage].Init(Filler::kArrivals);
      shared.empty[stage].Init(T::kConsumerThreads);
    }
    FenceBarrierInit();
    PrefetchTensorMap(&boxes.w.map[0]);
    if (p.gated) PrefetchTensorMap(&boxes.w.map[1]);
    if (T::kXInBoxes) PrefetchTensorMap(&boxes.x);
  }
  // Where experts' rows are, the kernel before may have written; weights nobody writes.
  const bool is_ahead = p.offsets == nullptr || p.offsets_are_old;
  const int tile_outputs = OutputsOfY<T::kOutputs>(p.gated);
  if (!is_ahead) TakeTurn();
  if (T::kHasExperts && p.offsets != nullptr) {
    shared.experts.Load(p, T::kThreads);
    __syncthreads();  // offsets are there
    if (threadIdx.x < 32) shared.experts.Count(p, tile_outputs);
  }
  __syncthreads();  // barriers are there, and tiles are counted
  const Tiles tiles(p, tile_outputs, shared.experts);
  const int ranges = T::kHasRanges ? p.num_splits : 1;
  const int first = static_cast<int>(blockIdx.x) / ranges;
  if (threadIdx.x < T::kConsumerThreads) {
    if (is_ahead) TakeTurn();
    if (p.offsets != nullptr && blockIdx.x == 0) ReportBadOffsets(p, T::kConsumerThreads);
    DecodeConsumer<T> consumer(p, shared);
    RunTiles(tiles, consumer, ranges);
  } else {
    Filler producer(p, boxes.w, T::kXInBoxes ? &boxes.x : nullptr, shared);
    if (is_ahead) {
      if (first < tiles.count()) producer.Begin(PlaceOf(tiles, first, ranges));
      TakeTurn();
    }
    RunTiles(tiles, producer, ranges);
  }
  if constexpr (T::kHasRanges) {
    if (ranges == 1) return;
    // A tile is a cluster's, and a cluster has one.
    AddRanges<T::kTileRows, T::kOutputs, T::kThreads>(p, PlaceOf(tiles, first, ranges),
                                                      reinterpret_cast<float*>(&shared.stages));
  }
}

template <class T>
void LaunchDecode(const TileParams& p, const Stream& stream) {
  static_assert(sizeof(DecodeStages<T>) <= DecodeStages<T>::kBytesOfTwo);
  LaunchColumns<T>("gemm: decode tiles", DecodeTiles<T>, sizeof(DecodeStages<T>), p, stream,
                   BoxesFor<T>(p));
}

// Fewer would leave multiprocessors without work that tiles of 64 outputs have for them.
template <int kTileRows>
bool HasATileForAll(const TileParams& p) {
  return MostTiles<DecodeTile<TileMath::kFp8, kTileRows, 128, false>>(p) >= kMultiprocessors;
}

// Tiles of 128 outputs, whose inputs are not cut.
template <TileMath kMath, int kTileRows>
void LaunchWhole(const TileParams& p, const Stream& stream) {
  if (p.x_index == nullptr) {
    return LaunchDecode<DecodeTile<kMath, kTileRows, 128, false>>(p, stream);
  }
  LaunchDecode<DecodeTile<kMath, kTileRows, 128, true>>(p, stream);
}

template <int kTileRows>
void LaunchCodesOf(const TileParams& p, const Stream& stream) {
  if (p.offsets != nullptr || (p.num_splits == 1 && HasATileForAll<kTileRows>(p))) {
    return LaunchWhole<TileMath::kFp8, kTileRows>(p, stream);
  }
  LaunchDecode<DecodeTile<TileMath::kFp8, kTileRows, 64, false>>(p, stream);
}

}  // namespace

bool DecodeTakes(const TileParams& p, const TileChoice& tile) {
  if (tile.loads != TileLoads::kAligned || p.num_experts > kMostDecodeExperts) return false;
  if (tile.math == TileMath::kBf16) {
    return tile.size == TileSize::kMedium && p.offsets != nullptr;
  }
  const bool is_small = tile.size == TileSize::kDecode || tile.size == TileSize::kMedium;
  return tile.math == TileMath::kFp8 && is_small && p.inputs % 2 == 0;  // boxes are of pairs
}

void LaunchDecodeTiles(const TileParams& p, const TileChoice& tile, const Stream& stream) {
  QUIRE_CHECK(DecodeTakes(p, tile), "{} inputs and {} experts by decode tiles", p.inputs,
              p.num_experts);
  QUIRE_CHECK(!p.gated || p.offsets != nullptr, "gate and up of a dense product");
  constexpr int kFew = ExtentOf(TileSize::kDecode).rows, kMore = ExtentOf(TileSize::kMedium).rows;
  if (tile.math == TileMath::kBf16) return LaunchWhole<TileMath::kBf16, kMore>(p, stream);
  if (tile.size == TileSize::kDecode) return LaunchCodesOf<kFew>(p, stream);
  LaunchCodesOf<kMore>(p, stream);
}

}  // namespace quire::cuda
