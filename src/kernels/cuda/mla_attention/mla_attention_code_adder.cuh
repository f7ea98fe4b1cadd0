// The warps that add values of up to 16 rows over fp8 keys, O += P V, and write what a split ends with.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_ADDER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_ADDER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_codes.cuh"
#include "kernels/cuda/mla_attention/mla_attention_sums.cuh"

namespace quire::cuda::mla {

struct CodeColumns {
  static constexpr int32_t Of(int patch) { return patch * 8; }
};

// Those that a thread has of patches, too.
struct CodeSumRows {
  static constexpr int kThreads = kCodeAdders * kWarp, kRows = 2;
  static constexpr __device__ int WhichOf(int i) { return i % 4 / 2; }
  static __device__ int32_t RowOf(int thread, int which) { return thread % 32 / 4 + 8 * which; }
};

// A warp has 64 columns, and a lane loads eight of them, from `lane / 4 * 8` on, of keys that a product pairs:
// column n of product j is column 8 n + j of the warp's. So o_[j][2 i + e], until TurnSums, is of row
// lane / 4 + 8 i and of column 16 (lane % 4) + 8 e + j.
class CodeAdder : RowSums<8, 4, CodeColumns> {
 public:
  __device__ CodeAdder(const MlaKernelArgs& args, SharedCodes& shared, int32_t worker, int role)
      : RowSums(args, shared, worker, role), shared_(shared), place_(shared) {
    const int warp = thread_ / kWarp;
    part_ = {.row = 0, .column = warp * kColumns, .tells = warp == 0};
  }

  __device__ __forceinline__ void Run() {
    RunSplits<kPatches>([&] { return RunTurn(); }, [&] { TurnSums(); });
  }

 private:
  static constexpr int kColumns = 64, kProducts = 8;

  __device__ __forceinline__ uint32_t Lane() const {
    return static_cast<uint32_t>(thread_) % kWarp;
  }

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    place_.WaitUntilFull();
    const Turn turn = place_.ThisTurn();
    return AddTurn<CodeSumRows>(place_, turn, shared_.alpha[place_.turn()], [&] { AddValues(); });
  }

  __device__ __forceinline__ void AddValues() {
    if (shared_.has_small[place_.turn()]) {
      AddCodes<true>();
    } else {
      AddCodes<false>();
    }
  }
  template <bool kHasSmall>
  __device__ __forceinline__ void AddCodes() {
    const uint32_t lane = Lane(), warp = static_cast<uint32_t>(thread_) / kWarp;
    const uint32_t weights = place_.Weights() + PanelChunk(lane % 16, lane / 16);
    const uint32_t from =
        place_.Rows() + lane % 4 * 2 * kCodeRowBytes + warp * kColumns + lane / 4 * 8;
    // Of keys that the lane pairs: the first two, and the others 8 below.
    const uint32_t block = warp * kColumns / kCodeBlock;
    const uint32_t factors = SharedAddress(&shared_.factors[place_.turn()][block][lane % 4 * 2]);
    const uint32_t powers = SharedAddress(&shared_.powers[place_.turn()][block][lane % 4 * 2]);
    uint32_t codes[2][4][2];  // of a step and the next one
    LoadCodes(from, codes[0]);
#pragma unroll
    for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
      if (step + 1 < kTileKeys / 16) {
        LoadCodes(from + (step + 1) * 16 * kCodeRowBytes, codes[(step + 1) % 2]);
      }
      uint32_t w[4];
      LoadMatrices(weights ^ (step * 32), w[0], w[1], w[2], w[3]);
      uint32_t factor[2], power[2] = {};
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        factor[i] = LoadShared4(factors + (step * 16 + i * 8) * 2);
        if constexpr (kHasSmall) power[i] = LoadShared4(powers + (step * 16 + i * 8) * 2);
      }
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        uint32_t b[4][2];  // of four columns
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t first = codes[step % 2][2 * i][half];
          const uint32_t second = codes[step % 2][2 * i + 1][half];
          WidenHalvesToF16(__byte_perm(first, second, 0x5140), b[0][i], b[1][i]);
          WidenHalvesToF16(__byte_perm(first, second, 0x7362), b[2][i], b[3][i]);
#pragma unroll
          for (uint32_t j = 0; j < 4; ++j) {
            b[j][i] = MultiplyF16Pairs(b[j][i], factor[i]);
            if constexpr (kHasSmall) b[j][i] = MultiplyF16Pairs(b[j][i], power[i]);
          }
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) MultiplyF16(o_[half * 4 + j], w, b[j][0], b[j][1]);
      }
    }
  }
  // Of keys 0, 1, 8 and 9 from an address on.
  static __device__ __forceinline__ void LoadCodes(uint32_t from, uint32_t (&codes)[4][2]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      LoadShared8(from + (i / 2 * 8 + i % 2) * kCodeRowBytes, codes[i][0], codes[i][1]);
    }
  }

  // To patches: of each a lane has, in both of its rows, the columns from lane % 4 * 2 on. Four lanes have the
  // same rows, and exchange.
  __device__ __forceinline__ void TurnSums() {
    float turned[kProducts][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i / 4 * 2, patch = i / 2 % 2, column = i % 2;
      float four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = o_[2 * j + column][row + patch];
      TransposeOfFour(four);
#pragma unroll
      for (int j = 0; j < 4; ++j) turned[2 * j + patch][row + column] = four[j];
    }
#pragma unroll
    for (int i = 0; i < kProducts * 4; ++i) o_[i / 4][i % 4] = turned[i / 4][i % 4];
  }
  // Of four lanes beside each other: a lane gets what the others had of its number.
  __device__ __forceinline__ void TransposeOfFour(float (&four)[4]) const {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      const bool is_second = (thread_ & apart) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & apart) != 0) continue;
        const float given = is_second ? four[i] : four[i + apart];
        const float taken = __shfl_xor_sync(kAllLanes, given, apart);
        if (is_second) {
          four[i] = taken;
        } else {
          four[i + apart] = taken;
        }
      }
    }
  }

  SharedCodes& shared_;
  CodePlace place_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_ADDER_CUH_
