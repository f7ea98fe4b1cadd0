// What the warpgroups of the warpgroup kernel have in common, whatever their role.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_

#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

// Roles, by warpgroup, and the barrier of each.
enum Role : int { kScorer = 0, kAdders = 1, kProducer = 3 };
inline constexpr int kRoles = 4;
constexpr int BarrierOf(int role) { return 1 + role; }

// What every role has: the order at hand.
class Participant {
 public:
  __device__ Participant(const MlaKernelArgs& args, SharedTiles& shared, int role)
      : args_(args),
        shared_(shared),
        role_(role),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

 protected:
  // Calls run() for every order, until there are no more.
  template <class Run>
  __device__ __forceinline__ void ForEachOrder(Run run) {
    for (;; orders_.Advance()) {
      shared_.given[orders_.stage].Wait(orders_.parity);
      if (Block().num_rows == 0) return;
      run();
      shared_.done[orders_.stage].Arrive();
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

  __device__ __forceinline__ void Sync() const { SyncWarpgroup(BarrierOf(role_)); }
  __device__ __forceinline__ const Order& ThisOrder() const {
    return shared_.orders[orders_.stage];
  }
  __device__ __forceinline__ const Piece& ThisPiece() const { return ThisOrder().piece; }
  __device__ __forceinline__ const RowBlock& Block() const { return ThisOrder().block; }
  __device__ __forceinline__ int32_t SplitKeys() const {
    return static_cast<int32_t>(args_.plan.work.split.raw());
  }
  __device__ __forceinline__ uint32_t KeysAt(int stage) const {
    return SharedAddress(&shared_.keys[stage]);
  }
  // Row 0 or 1 of the two whose sums a product leaves in this thread.
  __device__ __forceinline__ int32_t RowOf(int which) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * which;
  }
  __device__ __forceinline__ int32_t VisibleTo(int which) const {
    return ThisOrder().visible[RowOf(which)];
  }
  const MlaKernelArgs& args_;
  SharedTiles& shared_;
  const int role_;
  const int thread_;
  RingPosition<kOrders> orders_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PARTICIPANT_CUH_
