// Scores of up to 16 rows over fp8 keys: codes become f16 in registers, as the rows of products.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_SCORES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_SCORES_CUH_

#include "kernels/cuda/mla_attention/mla_attention_codes.cuh"
#include "kernels/cuda/mla_attention/mla_attention_narrow_scorer.cuh"

namespace quire::cuda::mla {

// A warp has 16 keys, a lane two of them, `lane / 4` and 8 below, and of every 16 values the four from
// `lane % 4 * 4` on: queries lie accordingly (kInFours). How values of one product are ordered changes no bit
// (docs/numerics.md).
class CodeScores {
 public:
  using Keys = CodeKeys;
  using Shared = SharedCodes;
  using Place = CodePlace;
  static constexpr bool kInFours = true;

  static __device__ __forceinline__ Turn Multiply(Shared& shared, const Place& place, int thread,
                                                  int barrier, float (&s)[8]) {
    const CodeScores scores(shared, place, static_cast<uint32_t>(thread));
    place.WaitUntilFull();
    const Turn turn = place.ThisTurn();
    uint32_t first[kGroup][2];
    scores.LoadGroup(0, first);
    const Scales scales = scores.TakeScales(shared, place.turn(), barrier);
    if (scales.has_small) {
      scores.AddLatent<true>(scales, first, s);
    } else {
      scores.AddLatent<false>(scales, first, s);
    }
    scores.AddRope(s);
    return turn;
  }
  // Nobody but threads reads weights.
  static __device__ __forceinline__ void FenceWeights() {}

 private:
  static constexpr uint32_t kQueryBytes = PanelRows<kNarrowRows>::kPanelBytes;
  // Products that are sent together, of 16 values each: a panel's of queries.
  static constexpr uint32_t kGroup = 4, kGroups = kPanels - 1;
  static constexpr uint32_t kGroupValues = kGroup * 16;
  static_assert(kGroupValues == kPanelValues);

  // Of block `lane % 4`: f16 of the first key, and of the other.
  struct Scales {
    uint32_t factors, powers;
    bool has_small;  // of all keys
  };
  // Of a block: f16 pairs for the first key, and for the other.
  struct KeyFactors {
    uint32_t of[2];
  };

  __device__ __forceinline__ CodeScores(const Shared& shared, const Place& place, uint32_t thread)
      : warp_(thread / kWarp),
        lane_(thread % kWarp),
        rows_(place.Rows() + warp_ * 16 * kCodeRowBytes),
        q_(SharedAddress(&shared.q)) {}

  // For this warp, and for those who add values. All warps ask whether a scale is small: a product is one of all
  // four, so they must take the same way.
  __device__ __forceinline__ Scales TakeScales(Shared& shared, uint32_t stage, int barrier) const {
    const uint32_t key = lane_ / 4, block = lane_ % 4;
    const uint32_t at = rows_ + key * kCodeRowBytes + kCodeScales + block * 4;
    const auto first = CodeScale::Of(__uint_as_float(LoadShared4(at)));
    const auto second = CodeScale::Of(__uint_as_float(LoadShared4(at + 8 * kCodeRowBytes)));
    const Scales scales{.factors = PackF16(first.fraction, second.fraction),
                        .powers = PackF16(first.power, second.power),
                        .has_small = SyncWarpgroupAny(barrier, first.is_small || second.is_small)};
    const auto store = [&](uint16_t(&to)[kCodeBlocks][kTileKeys], uint32_t pair) {
      to[block][warp_ * 16 + key] = static_cast<uint16_t>(pair);
      to[block][warp_ * 16 + key + 8] = static_cast<uint16_t>(pair >> 16);
    };
    store(shared.factors[stage], scales.factors);
    store(shared.powers[stage], scales.powers);
    if (warp_ == 0 && lane_ == 0) shared.has_small[stage] = scales.has_small;
    return scales;
  }
  __device__ __forceinline__ KeyFactors OfBlock(uint32_t own, uint32_t block) const {
    const uint32_t pair = __shfl_sync(kAllLanes, own, static_cast<int>(lane_ / 4 * 4 + block));
    return {{__byte_perm(pair, pair, 0x1010), __byte_perm(pair, pair, 0x3232)}};
  }

  // Codes of a group become f16 while products of the one before run. `first`: those of group 0.
  template <bool kHasSmall>
  __device__ __forceinline__ void AddLatent(const Scales& scales,
                                            const uint32_t (&first)[kGroup][2],
                                            float (&s)[8]) const {
    uint32_t codes[2][kGroup][2];  // of a group and the next one
    uint32_t a[2][kGroup][4];      // of a group and the one before
#pragma unroll
    for (uint32_t i = 0; i < kGroup * 2; ++i) codes[0][i / 2][i % 2] = first[i / 2][i % 2];
    const uint32_t q = UniformHere(q_);
    HoldSums(s);
#pragma unroll
    for (uint32_t group = 0; group < kGroups; ++group) {
      if (group + 1 < kGroups) LoadGroup(group + 1, codes[(group + 1) % 2]);
      if (group > 1) WaitForProducts<1>();  // nobody reads the operands before the last
      const uint32_t block = group * kGroupValues / kCodeBlock;
      const KeyFactors factors = OfBlock(scales.factors, block);
      KeyFactors powers = {};
      if constexpr (kHasSmall) powers = OfBlock(scales.powers, block);
#pragma unroll
      for (uint32_t step = 0; step < kGroup; ++step) {
        uint32_t(&four)[4] = a[group % 2][step];
#pragma unroll
        for (uint32_t key = 0; key < 2; ++key) {
          WidenHalvesToF16(codes[group % 2][step][key], four[key], four[key + 2]);
#pragma unroll
          for (uint32_t half = 0; half < 4; half += 2) {
            four[key + half] = MultiplyF16Pairs(four[key + half], factors.of[key]);
            if constexpr (kHasSmall) {
              four[key + half] = MultiplyF16Pairs(four[key + half], powers.of[key]);
            }
          }
        }
        HoldOperand(four);
      }
      BeginProducts();
#pragma unroll
      for (uint32_t step = 0; step < kGroup; ++step) {
        MultiplyRowsByPanelsF16(s, a[group % 2][step],
                                PanelOperand(q, group * kQueryBytes + step * 32),
                                group > 0 || step > 0);
      }
      CommitProducts();
    }
  }
  __device__ __forceinline__ void LoadGroup(uint32_t group, uint32_t (&codes)[kGroup][2]) const {
    const uint32_t from = rows_ + lane_ / 4 * kCodeRowBytes + lane_ % 4 * 4 + group * kGroupValues;
#pragma unroll
    for (uint32_t step = 0; step < kGroup; ++step) {
      codes[step][0] = LoadShared4(from + step * 16);
      codes[step][1] = LoadShared4(from + 8 * kCodeRowBytes + step * 16);
    }
  }
  // The last ones: waits for all.
  __device__ __forceinline__ void AddRope(float (&s)[8]) const {
    const uint32_t from = rows_ + lane_ % 16 * kCodeRowBytes + kCodeRope + lane_ / 16 * 16;
    const uint32_t q = UniformHere(q_);
    uint32_t a[kGroup][4];
#pragma unroll
    for (uint32_t step = 0; step < kGroup; ++step) {
      LoadMatrices(from + step * 32, a[step][0], a[step][1], a[step][2], a[step][3]);
    }
    BeginProducts();
#pragma unroll
    for (uint32_t step = 0; step < kGroup; ++step) {
      MultiplyRowsByPanels(s, a[step], PanelOperand(q, kGroups * kQueryBytes + step * 32), true);
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(s);
  }

  const uint32_t warp_, lane_;
  const uint32_t rows_;  // of the warp's first key
  const uint32_t q_;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_CODE_SCORES_CUH_
