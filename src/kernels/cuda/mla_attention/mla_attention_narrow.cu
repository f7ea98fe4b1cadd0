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
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_worker.cuh"

namespace quire::cuda {
namespace mla::narrow {
namespace {

__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MlaNarrow(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes) {
  std::byte* const memory = LaunchedShared<1024>();
  SharedParts& shared = *reinterpret_cast<SharedParts*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  PrefetchKeyBoxes(boxes);
  TakeTurn();
  __syncthreads();
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  RunRole(args, boxes, shared, role, static_cast<int32_t>(blockIdx.x), 0);
}

}  // namespace
}  // namespace mla::narrow

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
