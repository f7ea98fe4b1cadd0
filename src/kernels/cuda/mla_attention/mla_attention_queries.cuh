// What scorers have in common: queries in shared memory, and weights.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_QUERIES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_QUERIES_CUH_

#include "kernels/cuda/mla_attention/mla_attention_participant.cuh"

namespace quire::cuda::mla {

// The softmax of a row, as each thread that has scores of it knows it. Scores become weights,
// exp2(scale * (score - m) + kLift). m follows the maximum only where weights would pass 2^kSlack otherwise, so
// threads need not tell each other of their maxima: a row's passes if one of its threads' does.
template <class Keys>
class RowSoftmax {
 public:
  // Of a piece.
  __device__ __forceinline__ void SetScale(float scale) { scale_ = scale; }
  // Of a split, of which no key was seen.
  __device__ __forceinline__ void Begin() {
    m_ = -INFINITY;
    anchor_ = 0.0f - kLift;
  }
  // Whether m would follow this maximum, of some keys or all. One that is no number is none.
  __device__ __forceinline__ bool WouldFollow(float top) const {
    return scale_ * (top - m_) > kSlack;
  }
  // The maximum of a tile's keys. Returns what older sums are to be multiplied with, 1 where m stays.
  __device__ __forceinline__ float Follow(float top) {
    const float before = m_;
    if (WouldFollow(top)) m_ = top;
    const float anchor = scale_ * Anchor(m_);
    anchor_ = anchor - kLift;
    return Base2Exponent::Exp(scale_ * before - anchor);
  }
  // m as Follow leaves it.
  __device__ __forceinline__ void Skip(float top) {
    if (WouldFollow(top)) m_ = top;
  }
  // m, not scaled, and one that another thread has.
  __device__ __forceinline__ float Unscaled() const { return m_; }
  __device__ __forceinline__ void SetUnscaled(float m) {
    m_ = m;
    anchor_ = scale_ * Anchor(m_) - kLift;
  }
  __device__ __forceinline__ float WeightOf(float score) const {
    return Base2Exponent::Exp(__fmaf_rn(scale_, score, -anchor_));
  }
  // m, as states have it.
  __device__ __forceinline__ float Maximum() const { return scale_ * m_ - kLift; }

 private:
  // Weights of f16 begin as far above its smallest values as its largest allow.
  static constexpr float kSlack = 8.0f, kLift = Keys::kAreF16 ? 7.0f : 0.0f;

  float scale_;
  float m_;       // not scaled
  float anchor_;  // scale_ * m_ - kLift; of m_ that is -inf, as if it were 0
};

// Two weights that lie beside each other.
template <class Keys>
__device__ __forceinline__ uint32_t PackWeights(const float* two) {
  return Keys::kAreF16 ? PackF16(two[0], two[1]) : PackBf16(two[0], two[1]);
}

// Eight words of two lanes beside each other, four of each: the first lane gets the even ones, the other the odd
// ones.
__device__ __forceinline__ void DealWords(uint32_t (&words)[4], bool is_second) {
  const uint32_t first = __shfl_xor_sync(kAllLanes, is_second ? words[0] : words[1], 1);
  const uint32_t second = __shfl_xor_sync(kAllLanes, is_second ? words[2] : words[3], 1);
  const uint32_t even[4] = {words[0], words[2], first, second};
  const uint32_t odd[4] = {first, second, words[1], words[3]};
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = is_second ? odd[i] : even[i];
}

// The latent part of queries becomes f16, in the thread that copied it. A power of two takes a row's
// largest value to [2^10, 2^11), so that no value is too large and those that are lost are too small
// to count. With kInFours, of every 16 values each four lie where a lane's four of a product are
// (MultiplyF16): a lane then has codes of four values that follow each other.
template <bool kInFours, int kRows>
__device__ __forceinline__ void NarrowQueries(const PanelRows<kRows>& q, float* units, int thread) {
  constexpr uint32_t kBytes = PanelRows<kRows>::kPanelBytes;
  const uint32_t chunk = static_cast<uint32_t>(thread) % 8;
#pragma unroll 1
  for (uint32_t row = static_cast<uint32_t>(thread) / 8; row < kRows; row += 16) {
    const uint32_t at = SharedAddress(&q) + PanelChunk(row, chunk);
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t panel = 0; panel < kPanels; ++panel) {
      const uint4 v = LoadShared16(at + panel * kBytes);
      largest = __vmaxu2(largest, __vmaxu2(__vmaxu2(v.x & 0x7fff7fff, v.y & 0x7fff7fff),
                                           __vmaxu2(v.z & 0x7fff7fff, v.w & 0x7fff7fff)));
    }
    largest = max(largest & 0xffff, largest >> 16);
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) {
      largest = max(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    }
    // Exponents as floats store them. Rows that are not finite stay so whatever they are counted in.
    const uint32_t exponent = max(largest >> 7, 11u);
    const float unit = __uint_as_float((exponent - 10) << 23);
    const float per_unit = __uint_as_float((264 - min(exponent, 254u)) << 23);
    if (chunk == 0) units[row] = unit;
#pragma unroll
    for (uint32_t panel = 0; panel < kPanels; ++panel) {
      const uint4 v = LoadShared16(at + panel * kBytes);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      uint32_t narrow[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = __uint_as_float(words[i] << 16) * per_unit;
        const float high = __uint_as_float(words[i] & 0xffff0000) * per_unit;
        narrow[i] = panel < kPanels - 1 ? PackF16(low, high) : PackBf16(low, high);
      }
      if (kInFours && panel < kPanels - 1) DealWords(narrow, chunk % 2 != 0);
      StoreShared16(at + panel * kBytes, narrow);
    }
  }
}

// Queries of a block's rows come to shared memory, by a warpgroup; products see them after its next barrier.
template <bool kAsF16, bool kInFours = false, int kRows>
__device__ __forceinline__ void CopyQueries(const MlaKernelArgs& args, const RowBlock& block,
                                            const PanelRows<kRows>& q, float* units, int thread) {
  const auto source = [&](int row) {
    // Without a row nothing is read; the address must be one of q all the same.
    const bool is_row = row < block.num_rows;
    const int32_t at = is_row ? row : 0;
    const Bf16* from =
        args.q.Row<Bf16>(block.tile.q_begin.raw() + block.TokenOf(at), block.HeadOf(at));
    return SourceRow{reinterpret_cast<const std::byte*>(from), is_row};
  };
  const auto panel = [&](uint32_t i) {
    return SharedAddress(&q) + i * PanelRows<kRows>::kPanelBytes;
  };
  CopyRows<kRows, PanelParts<1, kPanels>>(
      thread, source, panel, [](uint32_t) {}, [](uint32_t, uint32_t) {});
  CommitCopies();
  WaitForCopies<0>();
  if constexpr (kAsF16) NarrowQueries<kInFours>(q, units, thread);
  FenceForProducts();
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_QUERIES_CUH_
