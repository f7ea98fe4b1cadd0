// What the roles of the warpgroup kernels have in common, and how such kernels are launched.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_

#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

// What every role has: the order at hand.
class Participant {
 public:
  // Role `role` begins with that warpgroup, and has the named barrier behind its number.
  __device__ Participant(const MlaKernelArgs& args, SharedOrders& told, int role)
      : args_(args),
        told_(told),
        barrier_(1 + role),
        thread_(static_cast<int>(threadIdx.x) - role * kWarpgroup) {}

 protected:
  // Calls run() for every order, until there are no more.
  template <class Run>
  __device__ __forceinline__ void ForEachOrder(Run run) {
    for (;; orders_.Advance()) {
      told_.given[orders_.stage].Wait(orders_.parity);
      if (Block().num_rows == 0) return;
      run();
      told_.done[orders_.stage].Arrive();
    }
  }

  // Calls run(split, end, has_keys) for the splits [split, end) that are summed as one.
  template <class Run>
  __device__ __forceinline__ void ForEachSplit(Run run) const {
    const int32_t step = ThisPiece().Step(args_.plan.work);
    for (int32_t split = ThisPiece().first; split < ThisPiece().last; split += step) {
      run(split, split + step, split * SplitKeys() < Block().kv_end);
    }
  }

  __device__ __forceinline__ void Sync() const { SyncWarpgroup(barrier_); }
  __device__ __forceinline__ const Order& ThisOrder() const { return told_.orders[orders_.stage]; }
  __device__ __forceinline__ const Piece& ThisPiece() const { return ThisOrder().piece; }
  __device__ __forceinline__ const RowBlock& Block() const { return ThisOrder().block; }
  __device__ __forceinline__ int32_t SplitKeys() const {
    return static_cast<int32_t>(args_.plan.work.split.raw());
  }
  const MlaKernelArgs& args_;
  SharedOrders& told_;
  const int barrier_;
  const int thread_;
  RingPosition<kOrders> orders_;
};

// Launches a kernel whose CTAs have roles, and a Shared each.
template <class Shared, class... Params, class... Args>
void LaunchRoles(const char* name, void (*kernel)(Params...), LaunchShape shape,
                 const Stream& stream, const Args&... args) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(Shared))),
        name);
  shape.shared_bytes = sizeof(Shared);
  LaunchAhead(name, kernel, shape, stream, args...);
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_
