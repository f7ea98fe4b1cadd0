// The warpgroup that adds values of up to 16 rows over bf16 keys, O^T += V^T P^T, and writes what a split ends with.
//
// Values are a product's rows, 64 of a panel each. A thread has two values of each product and four rows of
// queries: o[product][4 j + 2 i + e] is of value 16 warp + lane / 4 + 8 i and row 8 j + lane % 4 * 2 + e.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_ADDER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_ADDER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_sums.cuh"

namespace quire::cuda::mla {

// Of 64 columns a warp has 16.
struct NarrowColumns {
  static constexpr int32_t Of(int patch) { return patch / 2 * 64 + patch % 2 * 8; }
};

// Row 2 j + e of a thread's four is row 8 j + lane % 4 * 2 + e.
struct NarrowSumRows {
  static constexpr int kThreads = kWarpgroup, kRows = 4;
  static constexpr __device__ int WhichOf(int i) { return i % 8 / 4 * 2 + i % 2; }
  static __device__ int32_t RowOf(int thread, int which) {
    return which / 2 * 8 + thread % 4 * 2 + which % 2;
  }
};

class NarrowAdder : RowSums<8, 8, NarrowColumns> {
 public:
  __device__ NarrowAdder(const MlaKernelArgs& args, SharedParts& shared, int32_t worker, int role)
      : RowSums(args, shared, worker, role), shared_(shared), place_(shared) {
    const int warp = thread_ / kWarp;
    part_ = {.row = 0, .column = warp * 16, .tells = warp == 0};
  }

  __device__ __forceinline__ void Run() {
    RunSplits<kPatches>([&] { return RunTurn(); }, [&] { TurnSums(); });
  }

 private:
  static constexpr int kProducts = 8, kSums = 8;

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
#pragma unroll
    for (uint32_t part = 0; part < RingParts::kParts; ++part) place_.WaitUntilFull(part);
    // All that can be known before there are weights.
    const Turn turn = place_.ThisTurn();
    if (turn.needs_fence) FenceForProducts();
    return AddTurn<NarrowSumRows>(place_, turn, shared_.alpha[place_.turn()], [&] { AddValues(); });
  }

  __device__ __forceinline__ void AddValues() {
    const uint32_t weights = Uniform(place_.Panel(kPanels - 1));
#pragma unroll
    for (int product = 0; product < kProducts; ++product) HoldSums(o_[product]);
    BeginProducts();
#pragma unroll
    for (uint32_t panel = 0; panel < kProducts; ++panel) {
      const uint32_t values = Uniform(place_.Panel(panel));
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step) {
        const uint64_t a = PanelOperand(values, step * 16 * 128);
        const uint64_t b = PanelOperand(weights, step * 32);
        MultiplyTurned(o_[panel], a, b, true);
      }
    }
    CommitProducts();
    WaitForProducts<0>();
#pragma unroll
    for (int product = 0; product < kProducts; ++product) HoldSums(o_[product]);
  }

  __device__ __forceinline__ void TurnSums() {
#pragma unroll
    for (int product = 0; product < kProducts; ++product) TurnToPatches(o_[product]);
  }

  SharedParts& shared_;
  PartPlace place_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_NARROW_ADDER_CUH_
