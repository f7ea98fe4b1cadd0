// Latent attention of warpgroups, for rows of 512 + 64 values: a CTA has 64 rows (query heads) and every key
// of a piece, and a warpgroup for each part of the work.
//
//   scorer      S = Q K^T, softmax, weights to shared memory
//   adders      two, with half of the columns of the values each: O += P V
//   producer    looks up pages, copies keys, tells the others of each pass
//
// The scorer is a tile ahead of the adders, so tensor cores have products while it computes weights.
//
// An element of S is a chain of products over the values, ascending; an element of O a chain over the keys,
// ascending. So neither rows beside it nor pages change a bit.
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_adder.cuh"
#include "kernels/cuda/mla_attention/mla_attention_boxes.cuh"
#include "kernels/cuda/mla_attention/mla_attention_producer.cuh"
#include "kernels/cuda/mla_attention/mla_attention_scorer.cuh"

namespace quire::cuda {
namespace mla {
namespace {

// By warpgroup.
enum Role : int { kScorer = 0, kAdders = 1, kProducer = 3 };
constexpr int kRoles = 4;

// Registers of a thread. They begin with 128 each: what adders take, the others have given back. A producer
// that converts has codes under way in its own; a register that it has to store away would wait for them.
template <class Keys>
struct Registers {
  static constexpr int kScorer = 80, kAdder = Keys::kAreCopied ? 176 : 160;
  static constexpr int kProducer = kRoles * 128 - kScorer - 2 * kAdder;
};

// Every thread arrives: one for its warp would be as fast, but racecheck does not see that __syncwarp
// before it speaks for the others.
template <class Keys>
__device__ void InitBarriers(SharedTiles& shared) {
  // A warp of a peer's adders arrives once.
  constexpr uint32_t kPeerAdders = (Keys::kCtas - 1) * 2 * kWarpgroup / kWarp;
  for (int stage = 0; stage < kStages; ++stage) {
    for (PhaseBarrier& full : shared.full[stage]) full.Init(kWarpgroup + 1);
    for (PhaseBarrier& weighted : shared.weighted[stage]) weighted.Init(kWarpgroup);
    for (PhaseBarrier& empty : shared.empty[stage]) empty.Init(2 * kWarpgroup + kPeerAdders);
    shared.asked[stage].Init(kWarpgroup);
  }
  shared.ended.Init(kWarpgroup);
  shared.taken.Init(2 * kWarpgroup);
  for (PhaseBarrier& given : shared.given) given.Init(kWarpgroup);
  for (PhaseBarrier& done : shared.done) done.Init(3 * kWarpgroup);
  FenceBarrierInit();
}

// CTAs of a worker, one per 64 rows of a tile, are neighbours: they read the same keys.
template <class Keys>
__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MlaWarpgroup(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes,
                 int32_t ctas_per_worker) {
  std::byte* const memory = LaunchedShared<1024>();
  SharedTiles& shared = *reinterpret_cast<SharedTiles*>(memory);
  if (threadIdx.x == 0) InitBarriers<Keys>(shared);
  if constexpr (Keys::kCtas > 1) ArriveAtCluster();  // with barriers that the peer uses
  PrefetchKeyBoxes(boxes);
  TakeTurn();
  __syncthreads();
  if constexpr (Keys::kCtas > 1) WaitForCluster();
  const int32_t worker = static_cast<int32_t>(blockIdx.x) / ctas_per_worker;
  const int32_t row_begin = static_cast<int32_t>(blockIdx.x) % ctas_per_worker * kMlaRows;
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role == kScorer) {
    GiveRegistersBack<Registers<Keys>::kScorer>();
    Scorer<Keys>(args, shared, role).Run();
  } else if (role == kProducer) {
    GiveRegistersBack<Registers<Keys>::kProducer>();
    Producer<Keys, TilePlace>(args, boxes, shared, role).Run(worker, row_begin);
  } else {
    TakeRegisters<Registers<Keys>::kAdder>();
    Adder<Keys>(args, shared, worker, role, role - kAdders).Run();
  }
  // Nobody leaves while its peer may still store or arrive here.
  if constexpr (Keys::kCtas > 1) SyncCluster();
}

// Whether CTAs beside each other run all pieces together: every tile has rows for all CTAs of a worker.
bool HasPairs(const MlaKernelArgs& args) {
  return args.plan.work.query_tile == TokenCount(1) &&
         CeilDiv(args.tile_rows, kMlaRows) % static_cast<int32_t>(kPair) == 0;
}

template <class Keys>
void Launch(const MlaKernelArgs& args, const KeyBoxes& boxes, const Stream& stream) {
  const int32_t ctas = CeilDiv(args.tile_rows, kMlaRows);
  LaunchRoles<SharedTiles>("MlaWarpgroup", MlaWarpgroup<Keys>,
                           {.grid = dim3(static_cast<unsigned>(args.plan.work.num_workers * ctas)),
                            .block = dim3(kRoles * kWarpgroup),
                            .cluster = Keys::kCtas},
                           stream, args, boxes, ctas);
}

}  // namespace
}  // namespace mla

void LaunchMlaWarpgroup(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                        StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  if (kernel_args.store.format == KvFormat::kLatentFp8) {
    (mla::HasPairs(kernel_args) ? mla::Launch<mla::PairedFp8Keys>
                                : mla::Launch<mla::Fp8Keys>)(kernel_args, {}, stream);
  } else {
    mla::Launch<mla::Bf16Keys>(kernel_args, mla::KeyBoxesOf<mla::TileParts>(kernel_args, lists),
                               stream);
  }
}

}  // namespace quire::cuda
