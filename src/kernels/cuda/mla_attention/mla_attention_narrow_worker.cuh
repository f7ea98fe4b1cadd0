// What a CTA does that is a worker of up to 16 rows over bf16 keys: the roles, by warpgroup.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_WORKER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_WORKER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_boxes.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_adder.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_scorer.cuh"
#include "kernels/cuda/mla_attention/mla_attention_producer.cuh"

namespace quire::cuda::mla::narrow {

enum Role : int { kScorer = 0, kAdder = 1, kProducer = 2 };
inline constexpr int kRoles = 3;

// By one thread.
__device__ inline void InitBarriers(SharedParts& shared) {
  for (uint32_t part = 0; part < kRoomParts; ++part) {
    shared.full[part].Init(kWarpgroup + 1);
    shared.empty[part].Init(kWarpgroup);
  }
  for (PhaseBarrier& weighted : shared.weighted) weighted.Init(kWarpgroup);
  shared.ended.Init(kWarpgroup);
  shared.taken.Init(kWarpgroup);
  for (PhaseBarrier& given : shared.given) given.Init(kWarpgroup);
  for (PhaseBarrier& done : shared.done) done.Init(2 * kWarpgroup);
  FenceBarrierInit();
}

// All of role `role`, of the pieces of `worker` and rows [row_begin, + 16) of each tile. The adder takes registers
// where it begins with fewer than it has, kAdderRegisters.
template <int kAdderRegisters = 0>
__device__ __forceinline__ void RunRole(const MlaKernelArgs& args, const KeyBoxes& boxes,
                                        SharedParts& shared, int role, int32_t worker,
                                        int32_t row_begin) {
  if (role == kScorer) {
    NarrowScorer<PanelScores>(args, shared, kScorer).Run();
  } else if (role == kAdder) {
    if constexpr (kAdderRegisters > 0) TakeRegisters<kAdderRegisters>();
    NarrowAdder(args, shared, worker, kAdder).Run();
  } else {
    Producer<Bf16Keys, PartPlace>(args, boxes, shared, kProducer).Run(worker, row_begin);
  }
}

}  // namespace quire::cuda::mla::narrow

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_WORKER_CUH_
