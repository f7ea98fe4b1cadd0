// The choice of queries whose keys were cut between workers, from what each of these kept. A query has a
// cluster of CTAs, the more the fewer queries there can be: each takes its share of the ranks, and they
// count together.
#include <iterator>

#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/select_keys/select_keys_search.cuh"

namespace quire::cuda {
namespace select {
namespace {

constexpr int kThreads = 1024;
constexpr int kMostCtas = 8;  // of a cluster that every Hopper has

struct alignas(16) SharedMerge {
  SearchMemory search;
  PhaseBarrier arrived;
};
// Ranks that a CTA, which has a multiprocessor for itself, has room for.
constexpr int64_t kMostMerged = 24576;
static_assert(sizeof(SharedMerge) + kMostMerged * sizeof(uint64_t) <= 232448, "227 KiB a CTA");

// What the workers have kept of a query's keys.
struct Partials {
  __device__ Partials(const SelectKernelArgs& args, const Merge& merge)
      : room(static_cast<uint32_t>(PartialRoom(args.shape.top_k))),
        ranks(args.scratch.partials.data() + int64_t{merge.first_partial} * room),
        counts(args.scratch.counts.data() + merge.first_partial),
        size(static_cast<uint32_t>(merge.num_partials)) {}

  uint32_t room;  // of one
  const uint64_t* ranks;
  const int32_t* counts;
  uint32_t size;
};

template <int kCtas>
using MergeSearch = Search<kThreads, 1, kCtas>;

// A CTA's share of the partials, by the copy engine to shared memory, as many as there is room for. Where
// there are few partials, all CTAs have a part of each. All warps do the same sums, and each sends for
// every 32nd.
template <int kCtas>
class Shares {
 public:
  __device__ Shares(const Partials& partials, SharedMerge& shared, uint64_t* to, uint32_t room)
      : partials_(partials),
        shared_(shared),
        to_(to),
        room_(room),
        cuts_(partials.size >= 4 * kCtas ? 1 : kCtas),
        cta_(static_cast<uint32_t>(blockIdx.x) % kCtas),
        warp_(static_cast<uint32_t>(threadIdx.x) / kWarp),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp),
        end_((partials.size * cuts_ + kCtas - 1 - cta_) / kCtas) {}

  __device__ bool AreSent() const { return next_ == end_; }

  // Behind the `used` candidates that are there, at an even number.
  __device__ void Send(uint32_t used) {
    const bool is_first = threadIdx.x == 0;
    if (used % 2 == 1) {
      if (is_first) to_[used] = 0;
      ++used;
    }
    while (next_ < end_) {
      const uint32_t share = (next_ + lane_) * kCtas + cta_, partial = share / cuts_;
      const bool is_there = next_ + lane_ < end_;
      const uint32_t count = is_there ? static_cast<uint32_t>(partials_.counts[partial]) : 0;
      const uint32_t begin = BeginOf(count, share % cuts_);
      const uint32_t own = BeginOf(count, share % cuts_ + 1) - begin;
      const uint32_t through = used + WarpSumThrough(own);
      const bool fits = is_there && through <= room_;
      const auto num_sent = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, fits)));
      if (num_sent == 0) break;
      const uint32_t sum = __shfl_sync(kAllLanes, through, static_cast<int>(num_sent) - 1);
      if (is_first) shared_.arrived.Expect((sum - used) * 8);
      if (lane_ == warp_ && fits && own > 0) {
        CopyBytes(
            SharedAddress(to_ + through - own),
            reinterpret_cast<const std::byte*>(partials_.ranks + partial * partials_.room + begin),
            own * 8, shared_.arrived.Address());
      }
      used = sum;
      next_ += num_sent;
    }
    if (is_first) {
      shared_.search.count = used;
      shared_.arrived.Arrive();
    }
  }

 private:
  static_assert(kThreads == kWarp * kWarp);

  // Where a part begins: at an even number, since 16 bytes are copied at a time. Behind an odd number of
  // ranks stands 0.
  __device__ uint32_t BeginOf(uint32_t count, uint32_t part) const {
    return (count + 1) / 2 * part / cuts_ * 2;
  }

  const Partials& partials_;
  SharedMerge& shared_;
  uint64_t* const to_;
  const uint32_t room_;
  const uint32_t cuts_;  // parts of a partial
  const uint32_t cta_, warp_, lane_;
  const uint32_t end_;  // shares of this CTA
  uint32_t next_ = 0;   // that is not on its way yet
};

// Of the plan, before the CTA's turn: the scorers, which are the kernel before, have waited for who made it.
template <class T>
__device__ T LoadOfPlan(const T* from) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  uint32_t words[sizeof(T) / sizeof(uint32_t)];
#pragma unroll
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = LoadHere<uint32_t>(reinterpret_cast<const std::byte*>(from) + i * sizeof(uint32_t));
  }
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <int kCtas>
__device__ void GatherShares(const Partials& partials, SharedMerge& shared, uint64_t* to,
                             uint32_t room, MergeSearch<kCtas>& search) {
  // All counts are asked for at once: where they are read, 32 at a time, they are in L1.
  if (threadIdx.x < partials.size) {
    (void)LoadNear(reinterpret_cast<const std::byte*>(partials.counts + threadIdx.x));
  }
  Shares<kCtas> shares(partials, shared, to, room);
  shares.Send(0);
  for (uint32_t parity = 0;; parity ^= 1) {
    shared.arrived.Wait(parity);
    if (shares.AreSent()) return;
    search.Prune();
    const uint32_t used = shared.search.count;
    FenceForProducts();  // what is thrown out may be written by copies
    search.Sync();
    shares.Send(used);
  }
}

// The same where candidates are too many for shared memory; of one CTA.
__device__ void GatherAll(const Partials& partials, MergeSearch<1>& search) {
  constexpr uint32_t kInFlight = 4;
  static_assert(kThreads * kInFlight <= kMostOffers);
  for (uint32_t partial = 0; partial < partials.size; ++partial) {
    const auto count = static_cast<uint32_t>(partials.counts[partial]);
    const uint64_t* from = partials.ranks + int64_t{partial} * partials.room;
    for (uint32_t first = threadIdx.x; first - threadIdx.x < count; first += kThreads * kInFlight) {
      uint64_t ranks[kInFlight];
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) {
        ranks[i] = first + i * kThreads < count ? from[first + i * kThreads] : 0;
      }
      search.OfferAll(ranks);
      search.MakeRoom();
    }
  }
}

// Of a query with so few keys, one CTA of a cluster merges all: the CTAs would wait for each other longer
// than for their shares.
constexpr int32_t kFewKeys = 16384;

// kShared: there is room for candidates in shared memory.
template <int kCtas, bool kShared>
__device__ void MergeQuery(const SelectKernelArgs& args, const Merge& merge, const QueryTile& tile,
                           SharedMerge& shared, uint64_t* ranks) {
  const int64_t room = kShared ? kMostMerged : CandidateRoom(args.shape.top_k);
  uint64_t* const candidates = kShared ? ranks : args.scratch.candidates.data() + blockIdx.x * room;
  const Partials partials(args, merge);
  MergeSearch<kCtas> search(shared.search, candidates, room, args.shape.top_k,
                            static_cast<int>(threadIdx.x));
  search.Begin();
  if constexpr (kShared) {
    GatherShares<kCtas>(partials, shared, ranks, static_cast<uint32_t>(room), search);
  } else {
    GatherAll(partials, search);
  }
  search.Finish();
  search.WriteAscending(static_cast<int32_t>(tile.kv_end.raw()),
                        args.chosen + tile.q_begin.raw() * args.shape.top_k);
}

template <int kCtas, bool kShared = true>
__global__ void __launch_bounds__(kThreads)
    SelectMerge(const __grid_constant__ SelectKernelArgs args) {
  std::byte* const memory = LaunchedShared<16>();
  SharedMerge& shared = *reinterpret_cast<SharedMerge*>(memory);
  auto* const ranks = reinterpret_cast<uint64_t*>(memory + sizeof(SharedMerge));
  const auto query = static_cast<int32_t>(blockIdx.x) / kCtas;
  if (threadIdx.x == 0) {
    shared.arrived.Init(1);
    FenceBarrierInit();
  }
  const Merge merge = LoadOfPlan(&args.plan.merges[static_cast<size_t>(query)]);
  const bool is_merged = query < LoadOfPlan(args.plan.counts).num_merges;
  QueryTile tile;
  if (is_merged) tile = LoadOfPlan(&args.plan.tiles[static_cast<size_t>(merge.tile)]);
  TakeTurn();
  if (!is_merged) return;
  const auto num_partials = static_cast<int64_t>(args.scratch.counts.size());
  if (tile.q_begin.raw() >= args.num_tokens ||
      merge.first_partial + merge.num_partials > num_partials) {
    return;  // the kernel before has reported it
  }
  if (kCtas == 1 || tile.kv_end > TokenCount(kFewKeys)) {
    MergeQuery<kCtas, kShared>(args, merge, tile, shared, ranks);
  } else if (blockIdx.x % kCtas == 0) {
    MergeQuery<1, kShared>(args, merge, tile, shared, ranks);
  }
}

template <int kCtas, bool kShared = true>
void LaunchMerge(const SelectKeysArgs& args, const SelectKernelArgs& kernel_args,
                 const Stream& stream) {
  const size_t bytes = sizeof(SharedMerge) + (kShared ? kMostMerged * sizeof(uint64_t) : 0);
  Check(cudaFuncSetAttribute(SelectMerge<kCtas, kShared>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "SelectMerge: shared memory");
  LaunchAhead("SelectMerge", SelectMerge<kCtas, kShared>,
              {.grid = static_cast<unsigned>(kCtas * args.plan.merges.size()),
               .block = kThreads,
               .shared_bytes = bytes,
               .cluster = kCtas,
               .overlaps = true},
              stream, kernel_args);
}

}  // namespace
}  // namespace select

void LaunchSelectMerge(const SelectKeysArgs& args, const SelectScratch& scratch,
                       const Stream& stream, StatusWord status) {
  const size_t num_merges = args.plan.merges.size();
  const auto num_sms = static_cast<size_t>(args.plan.work.num_workers);
  if (num_merges == 0) return;
  const select::SelectKernelArgs kernel_args = select::KernelArgsOf(args, scratch, status);
  if (!CandidatesAreShared(args.shape.top_k)) {
    select::LaunchMerge<1, false>(args, kernel_args, stream);
  } else if (num_merges * select::kMostCtas <= num_sms) {
    select::LaunchMerge<select::kMostCtas>(args, kernel_args, stream);
  } else if (num_merges * 4 <= num_sms) {
    select::LaunchMerge<4>(args, kernel_args, stream);
  } else {
    select::LaunchMerge<1>(args, kernel_args, stream);
  }
}

}  // namespace quire::cuda
