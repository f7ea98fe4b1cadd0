// Cache rows on their way to multi-head form: a CTA per half block of keys, a warp per key.
#include <algorithm>

#include "base/narrow_float.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"
#include "kernels/cuda/store/store_row.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kRows = kPoisonRows;                           // of a CTA
constexpr int kMaxQuads = kMaxExpandedLatent / (4 * kWarp);  // of a row, a lane's

struct GatherArgs {
  Sequences seqs;
  Expansion expansion;
  StoreView store;
  Bf16* latent;     // [rows, latent_dim]
  Bf16* rope;       // [rows, kPanelColumns]
  uint8_t* poison;  // [rows]
  int32_t* next_item;
  int32_t* poisoned;  // [rows / kRows]
  StatusWord status;
};

class Gatherer {
 public:
  __device__ explicit Gatherer(const GatherArgs& args)
      : args_(args), lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  // A warp's rows of a part of `block`, from row `first` on and kWarps apart, to rows of which the part's
  // first is `to`; whether one is poisoned: has a value that is not finite. Such a row becomes zeros, as
  // rows without a key are.
  __device__ bool Bring(const ExpandedBlock& block, int32_t first, int64_t to) const {
    // Slots first, a lane each: rows then wait for their values alone.
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
    const int32_t mine = first + warp + lane_ * kWarps;
    int64_t slot = 0;
    if (lane_ < kRows / kWarps && mine < block.count) slot = SlotOf(block, block.position + mine);
    bool is_poisoned = false;
#pragma unroll
    for (int i = 0; i < kRows / kWarps; ++i) {
      const int32_t row = warp + i * kWarps;
      is_poisoned |= BringRow(first + row < block.count, __shfl_sync(kAllLanes, slot, i), to + row);
    }
    return is_poisoned;
  }

 private:
  __device__ __forceinline__ bool BringRow(bool is_key, int64_t slot, int64_t to) const {
    const int32_t latent_dim = args_.store.dims.latent_dim, rope_dim = args_.store.dims.rope_dim;
    float4 latent[kMaxQuads] = {}, rope = {};
    if (is_key) {
      const RowReader reader(args_.store, slot);
#pragma unroll
      for (int q = 0; q < kMaxQuads; ++q) {
        const int32_t i = 4 * (lane_ + q * kWarp);
        if (i < latent_dim) latent[q] = reader.Latent(i);
      }
      if (4 * lane_ < rope_dim) rope = reader.Rope(4 * lane_);
    }
    bool is_finite = IsFinite(rope);
#pragma unroll
    for (int q = 0; q < kMaxQuads; ++q) is_finite = is_finite && IsFinite(latent[q]);
    is_finite = __all_sync(kAllLanes, is_finite);
    const float4 zeros{};
#pragma unroll
    for (int q = 0; q < kMaxQuads; ++q) {
      const int32_t i = 4 * (lane_ + q * kWarp);
      if (i < latent_dim) {
        StoreQuad(is_finite ? latent[q] : zeros, args_.latent + to * latent_dim, i, latent_dim);
      }
    }
    if (4 * lane_ < kPanelColumns) {
      StoreFour(is_finite ? rope : zeros, args_.rope + to * kPanelColumns + 4 * lane_);
    }
    if (lane_ == 0) args_.poison[to] = is_finite ? 0 : 1;
    return !is_finite;
  }

  static __device__ bool IsFinite(const float4& v) {
    return isfinite(v.x) && isfinite(v.y) && isfinite(v.z) && isfinite(v.w);
  }

  // A page that the pool does not have is reported, and the scratch page stands in.
  __device__ int64_t SlotOf(const ExpandedBlock& block, int32_t position) const {
    const int32_t page_size = args_.store.page_size, index = position / page_size;
    const int32_t page =
        index < args_.seqs.row_width.raw() ? args_.seqs.Row(block.seq)[index].raw() : -1;
    const int64_t slot = int64_t{page} * page_size + position % page_size;
    if (args_.store.Holds(slot)) return slot;
    Report(args_.status, DeviceFault::kPage, Launch::kMhaPrefill, static_cast<uint32_t>(block.seq));
    return position % page_size;
  }

  const GatherArgs& args_;
  const int lane_;
};

__global__ void __launch_bounds__(kWarps* kWarp)
    MhaGather(const __grid_constant__ GatherArgs args) {
  TakeTurn();
  constexpr int kPerBlock = static_cast<int>(kExpandedBlock.raw()) / kRows;
  const Gatherer gatherer(args);
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.next_item = 0;
  const int32_t num_parts = args.expansion.counts[0].row_offsets[1] / kRows;
  for (auto part = static_cast<int32_t>(blockIdx.x); part < num_parts;
       part += static_cast<int32_t>(gridDim.x)) {
    const ExpandedBlock block = args.expansion.blocks[static_cast<size_t>(part / kPerBlock)];
    const bool is_poisoned =
        __syncthreads_or(gatherer.Bring(block, part % kPerBlock * kRows, int64_t{part} * kRows));
    if (threadIdx.x == 0) args.poisoned[part] = is_poisoned ? 1 : 0;
  }
}

}  // namespace

void LaunchMhaGather(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream,
                     StatusWord status) {
  const GatherArgs gather{.seqs = args.plan,
                          .expansion = args.expansion,
                          .store = ReadViewOf(args.store),
                          .latent = keys.latent.Address<Bf16>(),
                          .rope = keys.rope.Address<Bf16>(),
                          .poison = keys.poison.data(),
                          .next_item = keys.next_item.data(),
                          .poisoned = keys.poisoned.data(),
                          .status = status};
  constexpr int64_t kMostCtas = 132 * 8;  // what a Hopper GPU runs at one time
  const int64_t parts = keys.rope.dim(0) / kRows;
  LaunchAhead("MhaGather", MhaGather,
              {static_cast<unsigned>(std::min(parts, kMostCtas)), kWarps * kWarp, 0}, stream,
              gather);
}

}  // namespace quire::cuda
