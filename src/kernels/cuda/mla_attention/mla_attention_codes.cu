// Latent attention of up to 16 rows (query heads) over fp8 rows of 512 + 64 values, which come to shared memory as
// they are stored: a tile of 64 keys takes 41 KiB of it, and memory gives no more.
//
//   scorer      a warpgroup: S^T = K Q^T, keys in registers; softmax, weights to shared memory
//   adder       eight warps: O += P V, 64 columns each
//   producer    four warps: look up pages, copy keys, tell the others of each pass
//
// Codes become f16 in the registers of those who multiply them, once for scores and once for values. An element has
// the chain of products that it has in the kernel for 64 rows (mla_attention_warpgroup.cu), of the same f16 values:
// the two have the same bits (docs/numerics.md: neither products of warps or of warpgroups, nor the order of operands
// or of values within a product change anything).
#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_code_adder.cuh"
#include "kernels/cuda/mla_attention/mla_attention_code_scores.cuh"
#include "kernels/cuda/mla_attention/mla_attention_producer.cuh"

namespace quire::cuda {
namespace mla {
namespace {

namespace codes {

// Where they begin, in warpgroups.
enum Role : int { kScorer = 0, kAdder = 1, kProducer = 3 };
constexpr int kRoles = 4;
// Registers of a thread. They begin with 128 each, which adders keep: the scorer, with operands of eight products and
// codes of four, takes what the producer gives back.
constexpr int kScorerRegisters = 144, kProducerRegisters = 2 * 128 - kScorerRegisters;
static_assert(kCodeScorers * kWarp == (kAdder - kScorer) * kWarpgroup);
static_assert(kCodeAdders * kWarp == (kProducer - kAdder) * kWarpgroup);

// Every thread arrives, as in the kernel for 64 rows.
__device__ void InitBarriers(SharedCodes& shared) {
  for (uint32_t stage = 0; stage < kCodeStages; ++stage) {
    shared.full[stage].Init(kWarpgroup + 1);
    shared.weighted[stage].Init(kCodeScorers * kWarp);
    shared.empty[stage].Init(kCodeAdders * kWarp);
  }
  shared.ended.Init(kCodeScorers * kWarp);
  shared.taken.Init(kCodeAdders * kWarp);
  for (PhaseBarrier& given : shared.given) given.Init(kWarpgroup);
  for (PhaseBarrier& done : shared.done) done.Init((kCodeScorers + kCodeAdders) * kWarp);
  FenceBarrierInit();
}

__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MlaCodes(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes) {
  std::byte* const memory = LaunchedShared<1024>();
  SharedCodes& shared = *reinterpret_cast<SharedCodes*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  TakeTurn();
  __syncthreads();
  const int32_t worker = static_cast<int32_t>(blockIdx.x);
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role < kAdder) {
    TakeRegisters<kScorerRegisters>();
    NarrowScorer<CodeScores>(args, shared, kScorer).Run();
  } else if (role < kProducer) {
    CodeAdder(args, shared, worker, kAdder).Run();
  } else {
    GiveRegistersBack<kProducerRegisters>();
    Producer<CodeKeys, CodePlace>(args, boxes, shared, kProducer).Run(worker, 0);
  }
}

// A page's rows, of 64 keys at most, are copied in one piece where that begins on a line. None where keys of a list
// are read, which lie apart.
KeyBoxes BoxesOf(const MlaKernelArgs& args, const KeyLists& lists) {
  KeyBoxes boxes{};
  if (lists.chosen != nullptr) return boxes;
  for (const int32_t rows : {64, 32, 16, 8}) {
    if (args.store.page_size % rows != 0) continue;
    boxes.rows = rows;
    break;
  }
  return boxes;
}

}  // namespace codes
}  // namespace
}  // namespace mla

void LaunchMlaCodes(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                    StatusWord status) {
  using namespace mla::codes;
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  mla::LaunchRoles<mla::SharedCodes>(
      "MlaCodes", MlaCodes,
      {.grid = dim3(static_cast<unsigned>(kernel_args.plan.work.num_workers)),
       .block = dim3(kRoles * kWarpgroup)},
      stream, kernel_args, BoxesOf(kernel_args, lists));
}

}  // namespace quire::cuda
