// Latent attention of few rows: query heads of a token, 16 at most, over bf16 rows of 512 + 64 values, outside of
// exact mode. Reading keys bounds it, or for short sequences the way to the first of them.
//
// A worker is a CTA, or a cluster of them: each has a share of a piece's keys, 32 at a time: a stage. In the end each
// folds a share of the columns of what all have.
//
//   producers   four warps: look up pages and copy keys, as far ahead as there is room
//   workers     eight warps. For scores each has a quarter of the values and half of the keys; the quarters meet in
//               shared memory. Then each makes the weights of two rows, and with everybody's weights adds values
//               to its 64 columns.
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_few_producer.cuh"
#include "kernels/cuda/mla_attention/mla_attention_few_worker.cuh"

namespace quire::cuda {
namespace mla::few {
namespace {

template <int kCtas>
__global__ void __launch_bounds__((kWorkers + kProducers) * kWarp, 1)
    MlaFew(const __grid_constant__ FewArgs args) {
  std::byte* const memory = LaunchedShared<128>();
  using Shared = SharedFew<kCtas>;
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const FewPieces<kCtas> pieces(args, static_cast<int32_t>(blockIdx.x) / kCtas);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
      shared.full[stage].Init(kProducers * kWarp);
      shared.empty[stage].Init(kWorkers * kWarp);
    }
    shared.asked.Init(kProducers * kWarp);
    shared.heard.Init(kWorkers * kWarp);
    if constexpr (kCtas > 1) {
      shared.parts.there.Init(1);
      shared.parts.read.Init(kCtas);
    }
    FenceBarrierInit();
  }
  if constexpr (kCtas > 1) ArriveAtCluster();  // with barriers that others may use
  __syncthreads();
  if (threadIdx.x / kWarp >= kWorkers) {
    FewProducer<kCtas>(args, shared).Run(pieces);
    if constexpr (kCtas > 1) WaitForCluster();
  } else {
    if constexpr (kCtas > 1) WaitForCluster();  // long before keys come
    FewWorker<kCtas>(args, shared).Run(pieces);
  }
}

template <int kCtas>
LaunchShape PrepareFew(int32_t num_workers) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedFew<kCtas>));
  Check(cudaFuncSetAttribute(MlaFew<kCtas>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MlaFew: shared memory");
  return {.grid = dim3(static_cast<unsigned>(num_workers * kCtas)),
          .block = dim3((kWorkers + kProducers) * kWarp),
          .shared_bytes = static_cast<size_t>(kBytes),
          .cluster = kCtas};
}

template <int kCtas>
void LaunchFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
               StatusWord status) {
  LaunchAhead(
      "MlaFew", MlaFew<kCtas>, PrepareFew<kCtas>(args.plan.work.num_workers), stream,
      FewArgs{KernelArgsOf(args, lists, status), DividerOf(args.store.read_layout().page_size()),
              static_cast<int32_t>(args.plan.work.split.raw())});
}

}  // namespace
}  // namespace mla::few

void LaunchMlaFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                  StatusWord status) {
  using namespace mla::few;
  (args.plan.work.ctas == 1 ? LaunchFew<1> : LaunchFew<kMlaFewCtas>)(args, lists, stream, status);
}

int32_t MostMlaClusters() {
  using namespace mla::few;
  const LaunchShape shape = PrepareFew<kMlaFewCtas>(1);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  Check(cudaOccupancyMaxActiveClusters(&clusters, MlaFew<kMlaFewCtas>, &config),
        "MlaFew: clusters that run at once");
  return clusters;
}

}  // namespace quire::cuda
