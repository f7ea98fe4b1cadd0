// The choice of queries whose keys were cut between workers, from what each has chosen: a CTA per query.
#include "device/cuda/launch.h"
#include "kernels/cuda/select_keys/select_keys_search.cuh"

namespace quire::cuda {
namespace select {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // ranks of a thread
constexpr uint32_t kBlock = kWarp * kInFlight;
static_assert(kThreads * kInFlight <= kMostOffers);

// The ranks of a query's partials, in blocks that a warp reads at once.
class PartialRanks {
 public:
  __device__ PartialRanks(const SelectKernelArgs& args, const Merge& merge)
      : ranks_(args.scratch.partials.data() + int64_t{merge.first_partial} * args.shape.top_k),
        counts_(args.scratch.counts.data() + merge.first_partial),
        top_k_(static_cast<uint32_t>(args.shape.top_k)),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp) {
    uint32_t most = 1;
    for (uint32_t i = lane_; i < static_cast<uint32_t>(merge.num_partials); i += kWarp) {
      most = max(most, static_cast<uint32_t>(counts_[i]));
    }
    // Blocks of a partial: a power of two, so that nothing is divided.
    const uint32_t blocks = (__reduce_max_sync(kAllLanes, most) + kBlock - 1) / kBlock;
    block_bits_ = blocks == 1 ? 0 : 32 - static_cast<uint32_t>(__clz(static_cast<int>(blocks - 1)));
    num_blocks_ = static_cast<uint32_t>(merge.num_partials) << block_bits_;
  }

  __device__ uint32_t num_blocks() const { return num_blocks_; }
  // This lane's ranks of a block; 0 where there are none: no rank is 0.
  __device__ void Load(uint32_t block, uint64_t (&to)[kInFlight]) const {
    const uint32_t partial = block >> block_bits_;
    const uint32_t first = (block - (partial << block_bits_)) * kBlock + lane_;
    const uint32_t count = block < num_blocks_ ? static_cast<uint32_t>(counts_[partial]) : 0;
    const uint64_t* ranks = ranks_ + partial * top_k_ + first;
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      to[i] = first + i * kWarp < count ? ranks[i * kWarp] : 0;
    }
  }

 private:
  const uint64_t* const ranks_;
  const int32_t* const counts_;
  const uint32_t top_k_, lane_;
  uint32_t block_bits_, num_blocks_;
};

__global__ void __launch_bounds__(kThreads)
    SelectMerge(const __grid_constant__ SelectKernelArgs args) {
  extern __shared__ __align__(16) std::byte memory[];
  SearchMemory& shared = *reinterpret_cast<SearchMemory*>(memory);
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<uint32_t>(threadIdx.x);
  TakeTurn();
  if (cta >= args.plan.counts->num_merges) return;
  const Merge merge = args.plan.merges[static_cast<size_t>(cta)];
  const QueryTile tile = args.plan.tiles[static_cast<size_t>(merge.tile)];
  const auto num_partials = static_cast<int64_t>(args.scratch.counts.size());
  if (tile.q_begin.raw() >= args.num_tokens ||
      merge.first_partial + merge.num_partials > num_partials) {
    return;  // the kernel before has reported it
  }
  Search<kThreads, 1> search(
      shared, CandidatesOf(args, cta, reinterpret_cast<uint64_t*>(memory + sizeof(SearchMemory))),
      args.shape.top_k, static_cast<int>(thread));
  search.Begin();
  const PartialRanks ranks(args, merge);
  constexpr uint32_t kWarps = kThreads / kWarp;
  const uint32_t warp = thread / kWarp;
  uint64_t next[kInFlight];
  ranks.Load(warp, next);
  for (uint32_t first = 0; first < ranks.num_blocks(); first += kWarps) {
    uint64_t offered[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) offered[i] = next[i];
    ranks.Load(first + kWarps + warp, next);
#pragma unroll
    for (const uint64_t rank : offered) search.Offer(rank, rank != 0);
    search.MakeRoom();
  }
  search.Finish();
  search.WriteAscending(static_cast<int32_t>(tile.kv_end.raw()),
                        args.chosen + tile.q_begin.raw() * args.shape.top_k);
}

}  // namespace
}  // namespace select

void LaunchSelectMerge(const SelectKeysArgs& args, const SelectScratch& scratch,
                       const Stream& stream, StatusWord status) {
  if (args.plan.merges.empty()) return;
  const size_t bytes = sizeof(select::SearchMemory) + select::SharedCandidateBytes(args);
  Check(cudaFuncSetAttribute(select::SelectMerge, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "SelectMerge: shared memory");
  LaunchAhead("SelectMerge", select::SelectMerge,
              {static_cast<unsigned>(args.plan.merges.size()), select::kThreads, bytes}, stream,
              select::KernelArgsOf(args, scratch, status));
}

}  // namespace quire::cuda
