// Products of up to 64 rows of bf16: the copy engine brings rows of x and of w alike.
//
//   producer    a thread: boxes of x and of w; w's first ones before the kernel's turn
//   consumers   a warpgroup: sums += w x^T, since w has the 64 rows of a product; then y
//
// Where a tile's inputs are cut, its ranges are the CTAs of a cluster. A group of 8 rows belongs to one of them: the
// others store their sums of it in its shared memory, it adds all of them, ranges ascending, and writes y. A CTA ends
// when it has what others send to it, and who sends waits for nobody.
#include <algorithm>

#include "base/error.h"
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/gemm/gemm_boxed.h"
#include "kernels/cuda/gemm/gemm_boxes.cuh"
#include "kernels/cuda/gemm/gemm_columns.cuh"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace {

// What gemm_boxes.cuh asks of a tile. With two blocks of outputs it is one of gate and up.
template <int kTileRowsOf, int kOutputsOf>
struct BoxedTile {
  static constexpr int kTileRows = kTileRowsOf, kOutputs = kOutputsOf;
  static constexpr int kBlocks = kOutputs / kColumnOutputs;
  static constexpr int kGroups = kTileRows / 8;  // of 8 rows
  static constexpr int kInputBytes = 2, kStepInputs = kRowBytes / kInputBytes;
  static constexpr bool kReadsOnce = true, kPair = false;
  static constexpr int kConsumerThreads = kWarpgroup, kThreads = kConsumerThreads + 32;
  static constexpr int kCtas = 2;  // a multiprocessor
};

// As many stages as find room in half of a multiprocessor's memory: 48 KiB of weights are under way in a CTA, where
// 4.8 TB/s times a microsecond of latency need 36 a multiprocessor.
template <class T>
struct BoxedShared {
  static constexpr int kMostBytes =
      113 * 1024;  // of each of two CTAs, with 1 KiB that it has besides
  // A thread's sums of a group in a block are 16 bytes. With more ranges than groups a CTA owns one group at most.
  static constexpr int kParts = std::max<int>(T::kGroups, kMaxSplits) * T::kBlocks;
  static constexpr int kPartBytes = kParts * kWarpgroup * 16;
  static constexpr int kStages =
      std::min<int>(8, (kMostBytes - 1024 - kPartBytes) / sizeof(BoxStage<T>));
  static_assert(kStages >= 3);

  BoxStage<T> stages[kStages];
  float4 parts[kParts][kWarpgroup];  // all ranges' sums of this CTA's groups
  PhaseBarrier full[kStages], empty[kStages];
  PhaseBarrier all_parts;
};

// The tiles of a launch: all rows are in each.
class BoxedPlaces {
 public:
  __device__ explicit BoxedPlaces(const TileParams& p)
      : p_(p), columns_((p.outputs + kColumnOutputs - 1) / kColumnOutputs) {}

  __device__ int count() const { return p_.num_batches * columns_; }
  __device__ TilePlace At(int number) const {
    return {.batch = number / columns_,
            .row = 0,
            .row_end = p_.rows,
            .first_output = number % columns_ * kColumnOutputs};
  }

 private:
  const TileParams& p_;
  const int columns_;
};

// Which CTA of a cluster owns a group of rows, and where in its memory the ranges' sums of it are. A CTA alone owns all.
template <class T>
class GroupOwners {
 public:
  __device__ GroupOwners(const TileParams& p, const TilePlace& at)
      : ranges_(p.num_splits),
        shift_((ranges_ > 1) + (ranges_ > 2) + (ranges_ > 4)),
        rank_(at.split),
        groups_((min(T::kTileRows, at.row_end - at.row) + 7) / 8) {}

  __device__ int ranges() const { return ranges_; }
  __device__ int rank() const { return rank_; }
  __device__ bool IsThere(int group) const { return group < groups_; }
  __device__ int OwnerOf(int group) const { return group & (ranges_ - 1); }
  __device__ int PartOf(int from_rank, int group, int block) const {
    const int most = max(1, T::kGroups >> shift_);  // of a CTA
    return (from_rank * most + (group >> shift_)) * T::kBlocks + block;
  }
  // What the others will store here.
  __device__ uint32_t BytesToCome() const {
    const int own = max(0, groups_ - rank_ + ranges_ - 1) >> shift_;
    return static_cast<uint32_t>(own * (ranges_ - 1) * T::kBlocks) * kWarpgroup * sizeof(float4);
  }

 private:
  const int ranges_, shift_, rank_, groups_;  // ranges are 1, 2, 4 or 8
};

// A thread.
template <class T>
class BoxedProducer {
 public:
  static constexpr uint32_t kArrivals = 2;  // with the weights of a stage, and with its rows of x

  __device__ BoxedProducer(const TileParams& p, const ProductBoxes& maps, BoxedShared<T>& shared)
      : p_(p), maps_(maps), shared_(shared) {}

  // Asks for the first weights of the first tile, while x must not be read yet.
  __device__ void Begin(const TilePlace& at) {
    const InputRange<T::kStepInputs> range(p_, at.split);
    const int steps = min(BoxedShared<T>::kStages, range.num_steps());
#pragma unroll 1
    for (; asked_ < steps; ++asked_) {
      AskForW(at, asked_, range.begin + asked_ * T::kStepInputs, range.end);
    }
  }

  __device__ void Run(const TilePlace& at) {
    const InputRange<T::kStepInputs> range(p_, at.split);
#pragma unroll 1
    for (int input = range.begin; input < range.end; input += T::kStepInputs) {
      if (asked_ > 0) {
        --asked_;
      } else {
        shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
        AskForW(at, ring_.stage, input, range.end);
      }
      AskForX(at, ring_.stage, input);
      ring_.Advance();
    }
  }

 private:
  __device__ __forceinline__ void AskForW(const TilePlace& at, int stage, int input, int end) {
    AskForWeights<T>(p_, maps_.w, at, input, end, shared_.stages[stage], shared_.full[stage]);
  }
  // Rows and inputs that are not there are 0, and counted as bytes all the same.
  __device__ __forceinline__ void AskForX(const TilePlace& at, int stage, int input) {
    PhaseBarrier& full = shared_.full[stage];
    full.ArriveExpecting(BoxStage<T>::kXPanelBytes);
    CopyBox(SharedAddress(shared_.stages[stage].x), &maps_.x, input, at.row, at.batch,
            full.Address());
  }

  const TileParams& p_;
  const ProductBoxes& maps_;
  BoxedShared<T>& shared_;
  RingPosition<BoxedShared<T>::kStages> ring_;
  int asked_ = 0;  // steps of the ring whose weights are under way already
};

template <class T>
class BoxedConsumer {
 public:
  __device__ BoxedConsumer(const TileParams& p, BoxedShared<T>& shared) : p_(p), shared_(shared) {}

  __device__ void Run(const TilePlace& at) {
    Sums sums;
    Multiply(InputRange<T::kStepInputs>(p_, at.split), sums);
    const GroupOwners<T> owners(p_, at);
    if (owners.ranges() > 1) WaitForCluster();  // every CTA has begun, long ago
    GiveToOwners(owners, sums);
    StoreOwn(at, owners);
  }

 private:
  using Sums = float[T::kBlocks][4 * T::kGroups];  // as gemm_columns.cuh lays them out

  // A step's products are under way while the stage of the one before is freed.
  __device__ __forceinline__ void Multiply(const InputRange<T::kStepInputs>& range, Sums& sums) {
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
      for (float& sum : sums[block]) sum = 0.0f;
    }
    HoldColumns<T::kTileRows>(sums);
    const int num_steps = range.num_steps();
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      const int stage = Uniform(ring_.stage);
      shared_.full[stage].Wait(ring_.parity);
      const uint32_t x = SharedAddress(shared_.stages[stage].x);
      const uint32_t w = SharedAddress(shared_.stages[stage].w);
      BeginProducts();
      MultiplyColumns<TileMath::kBf16, T::kTileRows>(x, w, true, sums);
      CommitProducts();
      ring_.Advance();
      WaitForProducts<1>();  // those of the step before are done
      if (step > 0) FreeStage();
    }
    WaitForProducts<0>();
    HoldColumns<T::kTileRows>(sums);
    if (num_steps > 0) FreeStage();
  }

  // The first that is read and not free yet.
  __device__ __forceinline__ void FreeStage() {
    __syncwarp();
    if (thread_ % 32 == 0) shared_.empty[free_.stage].Arrive();
    free_.Advance();
  }

  // A thread's sums of every group, to the thread of its number in the CTA that owns the group.
  __device__ __forceinline__ void GiveToOwners(const GroupOwners<T>& owners, const Sums& sums) {
    const uint32_t barrier = shared_.all_parts.Address();
#pragma unroll
    for (int j = 0; j < T::kGroups; ++j) {
      if (!owners.IsThere(j)) break;
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        const float* of = sums[block] + 4 * j;
        const float4 part{of[0], of[1], of[2], of[3]};
        float4* const to = &shared_.parts[owners.PartOf(owners.rank(), j, block)][thread_];
        const int owner = owners.OwnerOf(j);
        if (owner == owners.rank()) {
          *to = part;
        } else {
          StoreAt(static_cast<uint32_t>(owner), SharedAddress(to), part, barrier);
        }
      }
    }
  }

  // Not unrolled, as in the rest of the kernel: short kernels wait for their code, too.
  __device__ __forceinline__ void StoreOwn(const TilePlace& at, const GroupOwners<T>& owners) {
    if (owners.BytesToCome() > 0) shared_.all_parts.WaitInCluster(0);
#pragma unroll 1
    for (int j = owners.rank(); owners.IsThere(j); j += owners.ranges()) {
      float sums[T::kBlocks][4];
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) AddParts(owners, j, block, sums[block]);
      StoreGroup(p_, at, j, sums);
    }
  }

  // sums = those of all ranges, ascending.
  __device__ __forceinline__ void AddParts(const GroupOwners<T>& owners, int j, int block,
                                           float (&sums)[4]) const {
#pragma unroll
    for (int from = 0; from < kMaxSplits; ++from) {
      if (from >= owners.ranges()) break;
      const float4 part = shared_.parts[owners.PartOf(from, j, block)][thread_];
      const float of[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[e] = from == 0 ? of[e] : sums[e] + of[e];
    }
  }

  const TileParams& p_;
  BoxedShared<T>& shared_;
  const int thread_ = static_cast<int>(threadIdx.x);
  RingPosition<BoxedShared<T>::kStages> ring_;  // what is read next
  RingPosition<BoxedShared<T>::kStages> free_;  // what is free next: at most one behind
};

// By one thread.
template <class T>
__device__ void InitBarriers(const TileParams& p, const TilePlace& first, BoxedShared<T>& shared) {
  for (int stage = 0; stage < shared.kStages; ++stage) {
    shared.full[stage].Init(BoxedProducer<T>::kArrivals);
    shared.empty[stage].Init(T::kConsumerThreads / 32);
  }
  shared.all_parts.Init(1);
  FenceBarrierInit();
  if (p.num_splits > 1) {
    shared.all_parts.ArriveExpecting(GroupOwners<T>(p, first).BytesToCome());
  }
}

// A CTA has one tile, or a cluster has (BoxedTakes).
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kCtas)
    BoxedTiles(const __grid_constant__ TileParams p, const __grid_constant__ ProductBoxes maps) {
  std::byte* const memory = LaunchedShared<1024>();
  auto& shared = *reinterpret_cast<BoxedShared<T>*>(memory);
  const int ranges = p.num_splits;
  const BoxedPlaces tiles(p);
  const bool is_producer = threadIdx.x == T::kConsumerThreads;
  BoxedProducer<T> producer(p, maps, shared);
  if (is_producer) {
    const TilePlace first = PlaceOf(tiles, static_cast<int>(blockIdx.x) / ranges, ranges);
    InitBarriers(p, first, shared);
    producer.Begin(first);
  }
  if (ranges > 1) ArriveAtCluster();  // with barriers that others use
  __syncthreads();                    // barriers are there
  TakeTurn();
  if (threadIdx.x < T::kConsumerThreads) {
    BoxedConsumer<T> consumer(p, shared);
    RunTiles(tiles, consumer, ranges);
    return;
  }
  if (is_producer) RunTiles(tiles, producer, ranges);
  __syncwarp();
  if (ranges > 1) WaitForCluster();
}

template <class T>
void Launch(const TileParams& p, const Stream& stream) {
  static_assert(sizeof(BoxedShared<T>) <= BoxedShared<T>::kMostBytes);
  LaunchColumns<T>("gemm: boxed tiles", BoxedTiles<T>, sizeof(BoxedShared<T>), p, stream,
                   ProductBoxesOf<T>(p));
}

template <int kTileRows>
void LaunchRows(const TileParams& p, const Stream& stream) {
  if (p.gated) return Launch<BoxedTile<kTileRows, 2 * kColumnOutputs>>(p, stream);
  Launch<BoxedTile<kTileRows, kColumnOutputs>>(p, stream);
}

}  // namespace

void LaunchBoxed(const TileParams& p, const Stream& stream) {
  QUIRE_CHECK(p.offsets == nullptr && p.rows <= kMaxBoxedRows, "{} rows by boxed tiles", p.rows);
  if (p.rows <= 16) return LaunchRows<16>(p, stream);
  if (p.rows <= 32) return LaunchRows<32>(p, stream);
  LaunchRows<64>(p, stream);
}

}  // namespace quire::cuda
