// What the products share whose weights the copy engine brings: what a stage holds, and the producer. Which tiles there
// are, and in which order CTAs take them, is gemm_tiles.cuh's.
//
// Of such a product P says
//   kTileRows, kOutputs       of a tile; with `gated`, half of the outputs' rows of w are gate's and half are up's
//   kInputBytes, kStepInputs  of an input, and how many inputs a stage has: whole panels of 128 bytes a row
//   kIndexed                  whether rows of x are those of an index
//   kXInBoxes                 whether the copy engine brings rows of x, too, which then have no index. A producer of
//                             several warps has one for boxes and one for scales
//   kFencesCopies             otherwise, whether the producer sees to it that products see its copies, or consumers do
//   kProducerThreads          which are whole warps
//   kReadsOnce                whether weights are read once in a step
//   kBeginsAhead              whether BoxProducer::Begin is called
//   kOneRange                 whether a CTA has one range of inputs, its number in the cluster, or all of them in turn
//   kBringsScales             whether a stage has the scales of its codes, too
//   kTellsPlaces              whether Shared has `places`, where a tile's first stage says where the tile is
//   kPair                     whether CTAs are clusters of two, whose row tiles are neighbours and have the same weights:
//                             each asks for half of them, for both
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXES_CUH_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXES_CUH_

#include <cstdint>
#include <numeric>

#include "device/cuda/tensor_map.h"
#include "kernels/cuda/gemm/gemm_tile_shape.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {

// The steps of a range of inputs.
template <int kStepInputs>
struct InputRange {
  int begin, end;

  __device__ InputRange(const TileParams& p, int range)
      : begin(range * p.split_inputs), end(min(p.inputs, begin + p.split_inputs)) {}
  __device__ int num_steps() const { return max(0, end - begin + kStepInputs - 1) / kStepInputs; }
};

// What a stage holds: panels of x, then as many of w.
template <class P>
struct alignas(1024) BoxStage {
  static constexpr int kPanels = P::kStepInputs * P::kInputBytes / kRowBytes;
  static constexpr uint32_t kXPanelBytes = P::kTileRows * kRowBytes;
  static constexpr uint32_t kWPanelBytes = P::kOutputs * kRowBytes;
  static_assert(kPanels * kRowBytes == P::kStepInputs * P::kInputBytes);
  static_assert(kXPanelBytes % 1024 == 0 && kWPanelBytes % 2048 == 0);  // halves of w, too

  std::byte x[kPanels * kXPanelBytes];
  std::byte w[kPanels * kWPanelBytes];
};

// The scales of a stage's codes, 128 inputs a panel; of a tile that brings none, nothing. Of w they are those of so many of
// a tile's rows of w each as are of one block wherever the tile is; with `gated` the first half is gate's, the other up's.
template <class P, bool kBrings = P::kBringsScales>
struct StageScales {
  static constexpr int kPanels = P::kStepInputs / kScaleBlock;
  static constexpr int kScaleOutputs = std::gcd(P::kOutputs / 2, kScaleBlock);
  static constexpr int kScalesOfW = P::kOutputs / kScaleOutputs;

  float x[kPanels][P::kTileRows];
  float w[kPanels][kScalesOfW];
};
template <class P>
struct StageScales<P, false> {};

// Copies them, by the producer, or by a warp of it where the copy engine brings x; of a tile that brings none, nothing.
// What of them is not there reaches no row of y.
template <class P, bool kBrings = P::kBringsScales>
class ScaleProducer {
 public:
  static constexpr int kThreads = P::kXInBoxes ? 32 : P::kProducerThreads;

  __device__ ScaleProducer(const TileParams& p, const TilePlace& at)
      : thread_(static_cast<int>(threadIdx.x) % kThreads) {
    const XRows<kRows, kThreads, P::kIndexed> rows(
        p, at.row + thread_, min(at.row_end, at.row + P::kTileRows), /*reports=*/false);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      x_[i] = rows.There(i) ? p.x_scales + rows[i] * p.x_scale_stride : nullptr;
    }
    constexpr int kOfHalf = Scales::kScalesOfW / 2;
    if (thread_ >= Scales::kScalesOfW) return;
    int output = at.first_output;
    // Not all of one block, or a pair's column that is not there.
    if constexpr (kScaleBlock % P::kOutputs != 0 || P::kPair) {
      const int behind = (p.gated ? thread_ % kOfHalf : thread_) * Scales::kScaleOutputs;
      output = min(output + behind, p.outputs - 1);
    }
    w_ = p.w_scales[thread_ / kOfHalf] + at.batch * p.w_scale_batch +
         output / kScaleBlock * p.w_scale_stride;
  }

  // Of the 128 inputs from `input` on.
  template <class Shared>
  __device__ __forceinline__ void Copy(Shared& shared, int stage, int panel, int input) const {
    Scales& to = shared.scales[stage];
    const int block = input / kScaleBlock;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (x_[i] != nullptr) CopyOne(&to.x[panel][thread_ + kThreads * i], x_[i] + block);
    }
    if (w_ != nullptr) CopyOne(&to.w[panel][thread_], w_ + block);
  }

 private:
  using Scales = StageScales<P>;
  static constexpr int kRows = (P::kTileRows + kThreads - 1) / kThreads;

  __device__ static void CopyOne(float* to, const float* from) {
    CopyAsync4(SharedAddress(to), reinterpret_cast<const std::byte*>(from), 4);
  }

  const int thread_;
  const float* x_[kRows];
  const float* w_ = nullptr;
};
template <class P>
class ScaleProducer<P, false> {
 public:
  static constexpr int kThreads = 0;

  __device__ ScaleProducer(const TileParams&, const TilePlace&) {}
  template <class Shared>
  __device__ void Copy(Shared&, int, int, int) const {}
};

// Weights as the copy engine finds them.
struct WeightBoxes {
  CUtensorMap map[2];
};

template <class P>
WeightBoxes BoxesOf(const TileParams& p) {
  const int64_t matrices = p.offsets != nullptr ? p.num_experts : p.num_batches;
  const auto map = [&](const std::byte* w) {
    return MakeTensorMap(
        {.data = w,
         .rows = p.outputs,
         .columns = p.inputs * P::kInputBytes / 2,
         .row_bytes = p.w_row_bytes,
         .box_rows = OutputsOfY<P::kOutputs>(p.gated || P::kPair),
         .box_columns = kRowBytes / 2,
         .matrices = matrices,
         .matrix_bytes = matrices > 1 ? p.w_batch_bytes : p.outputs * p.w_row_bytes});
  };
  WeightBoxes boxes;
  boxes.map[0] = map(p.w[0]);
  boxes.map[1] = p.gated ? map(p.w[1]) : boxes.map[0];
  return boxes;
}

// Whether each matrix has rows of x of its own. Those of experts follow each other, and matrices may share theirs: a
// stride of 0 is none that the copy engine's maps are said to take.
__host__ __device__ inline bool HasRowsOfBatches(const TileParams& p) {
  return p.offsets == nullptr && p.x_batch_bytes != 0;
}

// Rows of x, too.
struct ProductBoxes {
  WeightBoxes w;
  CUtensorMap x;
};

template <class P>
ProductBoxes ProductBoxesOf(const TileParams& p) {
  const int64_t batches = HasRowsOfBatches(p) ? p.num_batches : 1;
  return {
      .w = BoxesOf<P>(p),
      .x = MakeTensorMap({.data = p.x,
                          .rows = p.rows,
                          .columns = p.inputs * P::kInputBytes / 2,
                          .row_bytes = p.x_row_bytes,
                          .box_rows = P::kTileRows,
                          .box_columns = kRowBytes / 2,
                          .matrices = batches,
                          .matrix_bytes = batches > 1 ? p.x_batch_bytes : p.rows * p.x_row_bytes})};
}

template <class P>
ProductBoxes BoxesFor(const TileParams& p) {
  if constexpr (P::kXInBoxes) return ProductBoxesOf<P>(p);
  return {.w = BoxesOf<P>(p), .x = {}};
}

// A panel of a pair's weights, half by half: gate's and up's, or the first half of the outputs and the other. Where both
// CTAs have the same, each asks for one half, which comes to both.
template <class P>
__device__ __forceinline__ void AskForHalves(const TileParams& p, const WeightBoxes& boxes,
                                             const TilePlace& at, int column, uint32_t to,
                                             uint32_t full) {
  constexpr uint16_t kBoth = 0b11;
  constexpr int kHalfOutputs = P::kOutputs / 2;
  const int rank = static_cast<int>(RankInCluster());
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const void* map = &boxes.map[half];
    const int row = at.first_output + (p.gated ? 0 : half * kHalfOutputs);
    const uint32_t to_half = to + half * kHalfOutputs * kRowBytes;
    if (!at.has_same_weights) {
      CopyBox(to_half, map, column, row, at.batch, full);
    } else if (half == rank) {
      CopyBoxToCtas(to_half, map, column, row, at.batch, full, kBoth);
    }
  }
}

// By one thread: asks for the weights of a tile's inputs [input, end), as many panels as a stage has, and arrives once at
// `full`, which counts their bytes, whoever of a pair asks for them.
template <class P>
__device__ __forceinline__ void AskForWeights(const TileParams& p, const WeightBoxes& boxes,
                                              const TilePlace& at, int input, int end,
                                              BoxStage<P>& stage, PhaseBarrier& full) {
  using Stage = BoxStage<P>;
  constexpr int kPanelInputs = kRowBytes / P::kInputBytes;
  const auto ask_for_box = [&](uint32_t to, int matrix, int column) {
    const void* map = &boxes.map[matrix];
    if constexpr (P::kReadsOnce) {
      CopyBox(to, map, column, at.first_output, at.batch, full.Address(), ReadOncePolicy());
    } else {
      CopyBox(to, map, column, at.first_output, at.batch, full.Address());
    }
  };
  const int panels = min(Stage::kPanels, (end - input + kPanelInputs - 1) / kPanelInputs);
  full.ArriveExpecting(static_cast<uint32_t>(panels) * Stage::kWPanelBytes);
#pragma unroll
  for (int panel = 0; panel < Stage::kPanels; ++panel) {
    if (panel >= panels) break;
    // Boxes are of 16-bit elements.
    const int column = (input + panel * kPanelInputs) * P::kInputBytes / 2;
    const uint32_t to = SharedAddress(stage.w) + panel * Stage::kWPanelBytes;
    if constexpr (P::kPair) {
      static_assert(!P::kReadsOnce);
      AskForHalves<P>(p, boxes, at, column, to, full.Address());
    } else {
      ask_for_box(to, 0, column);
      if (p.gated) ask_for_box(to + Stage::kWPanelBytes / 2, 1, column);
    }
  }
}

// Brings rows of w in boxes, and rows of x in boxes, or one by one as the index says. Shared has stages, and `full` and
// `empty` of each, `scales` where they are brought. One thread arrives at `full` for the boxes, which bring bytes; where x
// or scales are copied every thread that copies arrives, too, when its copies have ended. Of a pair, consumers of both CTAs arrive at each
// `empty`: boxes come to both.
template <class P, class Shared>
class BoxProducer {
 public:
  static constexpr uint32_t kArrivals =
      1 + (P::kXInBoxes ? ScaleProducer<P>::kThreads : P::kProducerThreads);

  // x: boxes of it, or null where it is copied.
  __device__ BoxProducer(const TileParams& p, const WeightBoxes& boxes, const CUtensorMap* x,
                         Shared& shared)
      : p_(p),
        boxes_(boxes),
        x_(x),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x) % P::kProducerThreads),
        chunk_(thread_ % 8),
        row_(thread_ / 8) {}

  // Asks for the first weights of the first tile, while x must not be read yet.
  __device__ void Begin(const TilePlace& at) {
    const InputRange<P::kStepInputs> range(p_, at.split);
    const int steps = min(Shared::kStages, range.num_steps());
    for (; asked_ < steps; ++asked_) {
      AskFor(at, asked_, range.begin + asked_ * P::kStepInputs, range.end);
    }
  }

  __device__ void Run(const TilePlace& at) {
    if constexpr (P::kXInBoxes && P::kProducerThreads > 32) {
      if (thread_ == 0) AskForTile(at);
      if (P::kBringsScales && thread_ / 32 == 1) CopyScales(at);
    } else {
      BringTile(at);
    }
  }

  // When all tiles are done.
  __device__ void End() {
    if constexpr (P::kFencesCopies) {
      while (pending_ > 0) FinishCopies();
    }
    if constexpr (P::kPair) WaitUntilAllIsFree();  // the other arrives here no more
  }

 private:
  using Stage = BoxStage<P>;
  static constexpr int kRowStep = P::kProducerThreads / 8, kRows = P::kTileRows / kRowStep;
  static constexpr int kPanelInputs = kRowBytes / P::kInputBytes;
  // Stages of copies under way, where the producer waits for them.
  static constexpr int kMostPending = 3;
  static_assert(!P::kFencesCopies || kMostPending < Shared::kStages);

  // By the thread that arrives for the boxes, before it does.
  __device__ __forceinline__ void TellPlace(const TilePlace& at) const {
    if constexpr (P::kTellsPlaces) shared_.places[ring_.stage] = at;
  }

  __device__ void WaitUntilAllIsFree() {
    if (P::kXInBoxes && thread_ != 0) return;
    for (int i = 0; i < Shared::kStages; ++i) {
      shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
      ring_.Advance();
    }
  }

  __device__ __forceinline__ void AskForTile(const TilePlace& at) {
    static_assert(Stage::kPanels == 1 && !P::kIndexed);
    static_assert(!P::kBeginsAhead && !P::kOneRange);
    for (int i = 0; i < p_.num_splits; ++i) {
      const InputRange<P::kStepInputs> range(p_, i);
      for (int input = range.begin; input < range.end; input += P::kStepInputs) {
        shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
        if (i == 0 && input == range.begin) TellPlace(at);
        AskForX(at, 0, input);
        AskFor(at, ring_.stage, input, range.end);
        ring_.Advance();
      }
    }
  }

  // By the producer's second warp, beside the first one's boxes.
  __device__ __forceinline__ void CopyScales(const TilePlace& at) {
    const ScaleProducer<P> scales(p_, at);
    for (int i = 0; i < p_.num_splits; ++i) {
      const InputRange<P::kStepInputs> range(p_, i);
      for (int input = range.begin; input < range.end; input += P::kStepInputs) {
        shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
        scales.Copy(shared_, ring_.stage, 0, input);
        shared_.full[ring_.stage].ArriveAfterCopies();
        ring_.Advance();
      }
    }
  }

  __device__ __forceinline__ void BringTile(const TilePlace& at) {
    static_assert(!P::kXInBoxes || P::kBringsScales);  // who copies scales arrives after the boxes
    const std::byte* from[kRows] = {};
    if constexpr (!P::kXInBoxes) {
      const XRows<kRows, kRowStep, P::kIndexed> rows(p_, at.row + row_, at.row_end,
                                                     chunk_ == 0 && at.first_output == 0);
      const std::byte* x = rows.Origin(
          p_.x + (p_.offsets == nullptr ? at.batch * p_.x_batch_bytes : 0), p_.x_row_bytes);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        from[i] = rows.There(i) ? x + rows.Offset(i, p_.x_row_bytes) + chunk_ * 16 : nullptr;
      }
    }
    const ScaleProducer<P> scales(p_, at);
    const int end = P::kOneRange ? at.split + 1 : p_.num_splits;
    for (int i = at.split; i < end; ++i) {
      const InputRange<P::kStepInputs> range(p_, i);
      for (int input = range.begin; input < range.end; input += P::kStepInputs) {
        BringStep(at, from, scales, input, range.end, i == at.split && input == range.begin);
      }
    }
  }

  __device__ __forceinline__ void AskFor(const TilePlace& at, int stage, int input, int end) {
    if (thread_ != 0) return;
    AskForWeights<P>(p_, boxes_, at, input, end, shared_.stages[stage], shared_.full[stage]);
  }

  // By one thread: the box of a panel whose inputs begin at `first`. Rows that are not there become 0.
  __device__ __forceinline__ void AskForX(const TilePlace& at, int panel, int first) {
    PhaseBarrier& full = shared_.full[ring_.stage];
    full.Expect(Stage::kXPanelBytes);
    CopyBox(SharedAddress(shared_.stages[ring_.stage].x) + panel * Stage::kXPanelBytes, x_,
            first * P::kInputBytes / 2, at.row, HasRowsOfBatches(p_) ? at.batch : 0,
            full.Address());
  }

  // The same, row by row.
  __device__ __forceinline__ void CopyX(const std::byte* const (&from)[kRows], int panel, int first,
                                        int end) const {
    const uint32_t to = SharedAddress(shared_.stages[ring_.stage].x) + panel * Stage::kXPanelBytes;
    const int bytes = min(max((end - first) * P::kInputBytes - chunk_ * 16, 0), 16);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // Without a row nothing is copied: what is there then reaches no row of y.
      if (from[i] == nullptr) continue;
      // Without bytes nothing is read; the address must be one of x all the same.
      CopyAsync16(to + InPanel(row_ + i * kRowStep, chunk_),
                  from[i] + (bytes > 0 ? first * P::kInputBytes : 0), bytes);
    }
  }

  // from: this thread's 16 bytes of the first inputs of its rows, or null without a row or where rows come in boxes.
  __device__ __forceinline__ void BringStep(const TilePlace& at,
                                            const std::byte* const (&from)[kRows],
                                            const ScaleProducer<P>& scales, int input, int end,
                                            bool begins_tile) {
    if (P::kBeginsAhead && asked_ > 0) {
      --asked_;
    } else {
      WaitForRoom();
      if (begins_tile && thread_ == 0) TellPlace(at);
      AskFor(at, ring_.stage, input, end);
    }
#pragma unroll
    for (int panel = 0; panel < Stage::kPanels; ++panel) {
      const int first = input + panel * kPanelInputs;
      if (panel > 0 && first >= end) break;
      scales.Copy(shared_, ring_.stage, panel, first);
      if constexpr (P::kXInBoxes) {
        if (thread_ == 0) AskForX(at, panel, first);
      } else {
        CopyX(from, panel, first, end);
      }
    }
    if constexpr (P::kFencesCopies) {
      CommitCopies();
      if (++pending_ == kMostPending) FinishCopies();
    } else {
      shared_.full[ring_.stage].ArriveAfterCopies();
    }
    ring_.Advance();
  }

  // While there is none, copies that have begun are finished.
  __device__ __forceinline__ void WaitForRoom() {
    PhaseBarrier& empty = shared_.empty[ring_.stage];
    if constexpr (P::kFencesCopies) {
      while (pending_ > 0 && !empty.HasEnded(ring_.parity ^ 1)) FinishCopies();
    }
    empty.Wait(ring_.parity ^ 1);
  }

  // Waits for the oldest stage's copies, and lets products see them: a fence of those who copied, so that consumers, who
  // would wait at it for all they have asked of memory, need none.
  __device__ __forceinline__ void FinishCopies() {
    static_assert(kMostPending == 3);
    if (pending_ == 3) {
      WaitForCopies<2>();
    } else if (pending_ == 2) {
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    FenceForProducts();
    shared_.full[finished_].Arrive();
    finished_ = finished_ + 1 < Shared::kStages ? finished_ + 1 : 0;
    --pending_;
  }

  const TileParams& p_;
  const WeightBoxes& boxes_;
  const CUtensorMap* const x_;
  Shared& shared_;
  const int thread_, chunk_, row_;
  RingPosition<Shared::kStages> ring_;
  int asked_ = 0;    // steps of the ring whose weights are under way already
  int pending_ = 0;  // stages, from `finished_` on, whose copies are under way
  int finished_ = 0;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_BOXES_CUH_
