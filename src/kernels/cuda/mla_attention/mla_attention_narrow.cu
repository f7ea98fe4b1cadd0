// Latent attention of up to 16 rows (query heads), over bf16 rows of 512 + 64 values. Keys and values are the rows of
// products, and queries their columns, so that no product has rows of nobody:
//
//   scorer      S^T = K Q^T, softmax, weights to shared memory
//   adder       O^T += V^T P^T
//   producer    looks up pages, copies keys, tells the others of each pass
//
// An element has the chain of products that it has in the kernel for 64 rows (mla_attention_warpgroup.cu), and
// so do sums of weights: the two have the same bits (docs/numerics.md: the order of operands changes nothing).
// Queries take a quarter of the room, which keys have instead.
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_boxes.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_adder.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_scorer.cuh"
#include "kernels/cuda/mla_attention/mla_attention_producer.cuh"

namespace quire::cuda {
namespace mla {
namespace {

namespace narrow {

// By warpgroup.
enum Role : int { kScorer = 0, kAdder = 1, kProducer = 2 };
constexpr int kRoles = 3;

__device__ void InitBarriers(SharedParts& shared) {
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

__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MlaNarrow(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes) {
  extern __shared__ __align__(1024) std::byte memory[];
  SharedParts& shared = *reinterpret_cast<SharedParts*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  PrefetchKeyBoxes(boxes);
  TakeTurn();
  __syncthreads();
  const int32_t worker = static_cast<int32_t>(blockIdx.x);
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role == kScorer) {
    NarrowScorer<PanelScores>(args, shared, kScorer).Run();
  } else if (role == kAdder) {
    NarrowAdder(args, shared, worker, kAdder).Run();
  } else {
    Producer<Bf16Keys, PartPlace>(args, boxes, shared, kProducer).Run(worker, 0);
  }
}

}  // namespace narrow
}  // namespace
}  // namespace mla

void LaunchMlaNarrow(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                     StatusWord status) {
  using namespace mla::narrow;
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  mla::LaunchRoles<mla::SharedParts>(
      "MlaNarrow", MlaNarrow,
      {.grid = dim3(static_cast<unsigned>(kernel_args.plan.work.num_workers)),
       .block = dim3(kRoles * kWarpgroup)},
      stream, kernel_args, mla::KeyBoxesOf<mla::RingParts>(kernel_args, lists));
}

}  // namespace quire::cuda
