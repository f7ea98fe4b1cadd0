// The warps of the kernel for few rows that make scores and weights, add values, and fold what CTAs of a cluster have,
// and what clusters have.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_WORKER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_WORKER_CUH_

#include <cuda/atomic>

#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_few_pieces.cuh"

namespace quire::cuda::mla::few {

// A lane of a product has, with group = lane / 4, rows group and group + 8, and two of every eight keys or columns.
// Of weights a warp makes those of two rows, a lane those of two keys of one row.
template <int kCtas>
class FewWorker {
  using Parts = ClusterParts<kCtas>;

 public:
  __device__ FewWorker(const FewArgs& args, SharedFew<kCtas>& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<uint32_t>(threadIdx.x) / kWarp),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp),
        scale_(args.scale * kLog2E) {}

  __device__ void Run(const FewPieces<kCtas>& pieces) {
    TakeTurn();
    pieces.ForEach([&](const FewPiece& few) {
      if constexpr (kCtas > 1) {
        if (few.is_partial) FindMerge(few);  // long before keys come
      }
      Begin(few);
#pragma unroll 1
      for (int32_t key = few.begin; key < few.end; key += kStageKeys) RunStage(key);
      Finish(few);
    });
  }

 private:
  static constexpr uint32_t kRowLanes = 16;  // that weigh a row
  static constexpr float kSlack = 8.0f;

  __device__ void Begin(const FewPiece& few) {
    ExpectParts();
    sight_ = Sight::Of(args_, few);
    m_ = -INFINITY;
    l_ = 0.0f;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o_[i / 4][i % 4] = 0.0f;
    shared_.asked.Wait(asked_parity_);
    const uint32_t from =
        SharedAddress(shared_.q[lane_ % 16]) + lane_ / 16 * 16 + Quarter() * (32 * kQuarterSteps);
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      LoadMatrices(from + i * 32, q_[i][0], q_[i][1], q_[i][2], q_[i][3]);
    }
    shared_.heard.Arrive();
    asked_parity_ ^= 1;
  }

  __device__ void RunStage(int32_t key) {
    const uint32_t keys = SharedAddress(shared_.keys[ring_.stage]);
    shared_.full[ring_.stage].Wait(ring_.parity);
    Score(keys);
    Sync();  // scores are written, and weights of the stage before are read
    Weigh(key);
    Sync();  // weights are written, and scores are read
    Rescale();
    AddValues(keys);
    shared_.empty[ring_.stage].Arrive();
    ring_.Advance();
  }

  // ---- Scores and weights ----

  __device__ void Score(uint32_t keys) const {
    const uint32_t first = warp_ / kQuarters * 16;
    const uint32_t from = keys + (first + lane_ / 16 * 8 + lane_ % 8) * kRowPitch +
                          lane_ / 8 % 2 * 16 + Quarter() * (32 * kQuarterSteps);
    // A product waits for the one before that adds to the same sums.
    float s[2][4] = {}, odd[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      uint32_t b[4];
      LoadMatrices(from + i * 32, b[0], b[1], b[2], b[3]);
      float(&to)[2][4] = i % 2 == 0 ? s : odd;
      MultiplyBf16(to[0], q_[i], b[0], b[1]);
      MultiplyBf16(to[1], q_[i], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] += odd[i / 4][i % 4];
    const uint32_t row = lane_ / 4, column = first + lane_ % 4 * 2;
    float(&scores)[kRows][kStageKeys + 8] = shared_.scores[Quarter()];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      *reinterpret_cast<float2*>(&scores[row][column + i * 8]) = make_float2(s[i][0], s[i][1]);
      *reinterpret_cast<float2*>(&scores[row + 8][column + i * 8]) = make_float2(s[i][2], s[i][3]);
    }
  }

  // exp2(scale (score - m)). m follows the maximum only where weights would pass 2^kSlack otherwise, so that sums
  // are seldom multiplied.
  __device__ void Weigh(int32_t key) {
    const uint32_t row = OwnRow(), first = lane_ % kRowLanes * 2;
    float s[2] = {};
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const auto from = *reinterpret_cast<const float2*>(&shared_.scores[quarter][row][first]);
      s[0] += from.x;
      s[1] += from.y;
    }
    if (key + kStageKeys > sight_.keys) {
      const int32_t own = key + static_cast<int32_t>(first);
      if (!sight_.Has(own)) s[0] = -INFINITY;
      if (!sight_.Has(own + 1)) s[1] = -INFINITY;
    }
    float top = fmaxf(s[0], s[1]);
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
    }
    const float before = m_;
    if (scale_ * (top - before) > kSlack) m_ = top;
    const float anchor = scale_ * Anchor(m_);
    const float alpha = Base2Exponent::Exp(scale_ * before - anchor);  // 1 where m stays
    s[0] = Base2Exponent::Exp(__fmaf_rn(scale_, s[0], -anchor));
    s[1] = Base2Exponent::Exp(__fmaf_rn(scale_, s[1], -anchor));
    l_ = __fmaf_rn(alpha, l_, s[0] + s[1]);
    *reinterpret_cast<uint32_t*>(&shared_.weights[row][first]) = PackBf16(s[0], s[1]);
    if (lane_ % kRowLanes == 0) shared_.alpha[row] = alpha;
  }

  // ---- Values ----

  // Multiplies older sums.
  __device__ void Rescale() {
    const float alpha[2] = {shared_.alpha[lane_ / 4], shared_.alpha[lane_ / 4 + 8]};
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o_[i / 4][i % 4] *= alpha[i % 4 / 2];
  }

  __device__ void AddValues(uint32_t keys) {
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t w[4];
      LoadMatrices(SharedAddress(&shared_.weights[lane_ % 16][step * 16 + lane_ / 16 * 8]), w[0],
                   w[1], w[2], w[3]);
      const uint32_t from = keys + (step * 16 + lane_ % 16) * kRowPitch + lane_ / 16 * 16;
#pragma unroll
      for (uint32_t pair = 0; pair < kColumns / 16; ++pair) {
        uint32_t b[4];
        LoadMatricesTransposed(from + (warp_ * kColumns + pair * 16) * 2, b[0], b[1], b[2], b[3]);
        MultiplyBf16(o_[2 * pair], w, b[0], b[1]);
        MultiplyBf16(o_[2 * pair + 1], w, b[2], b[3]);
      }
    }
  }

  // ---- What a piece ends with ----

  // What two rows have, those of a lane, in patches beside each other.
  template <int kCount>
  struct PatchState {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    float4 sums[kCount] = {};
  };

  __device__ void Finish(const FewPiece& few) {
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      l_ += __shfl_xor_sync(kAllLanes, l_, lanes);
    }
    if constexpr (kCtas == 1) {
      FinishAlone(few);
    } else {
      GiveParts();
      shared_.parts.there.WaitInCluster(parts_parity_);
      parts_parity_ ^= 1;
      FinishParts(few);
    }
  }

  __device__ void FinishAlone(const FewPiece& few) {
    Sync();  // those of the piece before are read
    if (lane_ % kRowLanes == 0) shared_.stats[OwnRow()] = make_float2(scale_ * m_, l_);
    Sync();
    const float2 stats[2] = {shared_.stats[lane_ / 4], shared_.stats[lane_ / 4 + 8]};
    PatchState<kColumns / 8> state{.m = {stats[0].x, stats[1].x}, .l = {stats[0].y, stats[1].y}};
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      state.sums[i] = make_float4(o_[i][0], o_[i][1], o_[i][2], o_[i][3]);
    }
    const int32_t column = static_cast<int32_t>(warp_) * kColumns;
    if (few.is_partial) {
      StorePartial(few.partial, column, state);
    } else {
      WriteResult(few, column, state);
    }
  }

  // ---- Of a cluster ----

  // When a piece begins: every CTA has read the parts of the one before, and expects new ones.
  __device__ void ExpectParts() {
    if constexpr (kCtas > 1) {
      if (parts_begun_) {
        Sync();  // all threads have read them
        if (threadIdx.x < kCtas) shared_.parts.read.ArriveAt(threadIdx.x);
      }
      if (threadIdx.x == 0) shared_.parts.there.ArriveExpecting(Parts::kBytes);
    }
  }
  // Each CTA gets its columns, and m and l of all rows.
  __device__ void GiveParts() {
    Parts& parts = shared_.parts;
    if (parts_begun_) {
      parts.read.WaitInCluster(read_parity_);
      read_parity_ ^= 1;
    }
    parts_begun_ = true;
    const uint32_t rank = RankInCluster(), barrier = parts.there.Address();
#pragma unroll
    for (uint32_t i = lane_ % kRowLanes; i < 2 * kCtas; i += kRowLanes) {
      const float(&to)[kRows] = i % 2 == 0 ? parts.m[rank] : parts.l[rank];
      StoreAt(i / 2, SharedAddress(&to[OwnRow()]), i % 2 == 0 ? scale_ * m_ : l_, barrier);
    }
#pragma unroll
    for (uint32_t i = 0; i < kColumns / 8; ++i) {
      const uint32_t patch = warp_ * (kColumns / 8) + i;
      StoreAt(patch / Parts::kPatches,
              SharedAddress(&parts.sums[rank][patch % Parts::kPatches][lane_]),
              make_float4(o_[i][0], o_[i][1], o_[i][2], o_[i][3]), barrier);
    }
  }
  // First the cluster's parts; then, by whoever is the last CTA of its rank to have stored them as a partial, all
  // partials of the merge. So nobody waits for a CTA that may not have begun, and no kernel has to follow.
  __device__ void FinishParts(const FewPiece& few) {
    PatchState<Parts::kOfAWarp> state;
    bool is_whole = !few.is_partial;
    int32_t count = kCtas, next = 0, end = 0;  // parts that are there; partials that are not yet
    while (true) {
      if (HasPatch()) FoldParts(count, state);
      if (!is_whole) {
        if (!StoreShare(few.partial, state) || !IsLast()) return;
        is_whole = true;
        state = {};
        end = merge_.num_partials;
      }
      if (next == end) break;
      count = min(kCtas, end - next);
      BringPartials(next, count);
      next += count;
    }
    if (HasPatch()) WriteResult(few, FoldedColumn(), state);
  }
  // The first patch that the warp folds, of the CTA's and of all.
  __device__ uint32_t FoldedPatch() const { return warp_ * Parts::kOfAWarp; }
  __device__ bool HasPatch() const { return FoldedPatch() < Parts::kPatches; }
  __device__ int32_t FoldedColumn() const {
    return static_cast<int32_t>((RankInCluster() * Parts::kPatches + FoldedPatch()) *
                                kPatchColumns);
  }

  // The merge that the piece's partial is of.
  __device__ void FindMerge(const FewPiece& few) {
    const int32_t num_merges = args_.plan.counts->num_merges;
    const auto room = static_cast<int32_t>(args_.plan.merges.size());
    merge_ = {};
    int32_t first = 0;
#pragma unroll 1
    do {
      const int32_t own = first + static_cast<int32_t>(lane_);
      Merge merge;  // asked for before it is known whether the step has it
      if (own < room) merge = args_.plan.merges[static_cast<size_t>(own)];
      const int32_t number = few.partial - merge.first_partial;
      const bool is_own = own < num_merges && number >= 0 && number < merge.num_partials;
      const uint32_t found = __ballot_sync(kAllLanes, is_own);
      if (found != 0) {
        const int from = __ffs(static_cast<int>(found)) - 1;
        merge_ = {.tile = __shfl_sync(kAllLanes, merge.tile, from),
                  .first_partial = __shfl_sync(kAllLanes, merge.first_partial, from),
                  .num_partials = __shfl_sync(kAllLanes, merge.num_partials, from)};
        merge_number_ = first + from;
      }
      first += kWarp;
    } while (first < num_merges);
  }

  // m and l of a partial as one rank has stored them, beside sums that are a rank's own anyway: so whoever reads them
  // need not know of the other ranks. They lie where other kernels keep a worker's sums; there are fewer partials
  // than such states, two of each worker.
  __device__ float* StatsAt(int64_t partial) const {
    const int64_t floats = MlaStateFloats(args_.tile_rows, 512);
    return args_.folded + partial * floats + RankInCluster() * (2 * kRows);
  }
  // All threads; false if there is no room for it.
  __device__ bool StoreShare(int64_t index, const PatchState<Parts::kOfAWarp>& state) const {
    const int64_t end = merge_.first_partial + merge_.num_partials;
    if (end > min(args_.max_partials, int64_t{2} * args_.plan.work.num_workers) || end == 0) {
      if (threadIdx.x == 0 && RankInCluster() == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return false;
    }
    if (!HasPatch()) return true;
    float4* const sums =
        &StateAt(args_, args_.partials, index).Sums(0, FoldedColumn(), static_cast<int>(lane_));
#pragma unroll
    for (int i = 0; i < Parts::kOfAWarp; ++i) sums[i * kWarp] = state.sums[i];
    if (warp_ == 0 && lane_ % 4 == 0) {
      float* const stats = StatsAt(index) + lane_ / 4;
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        stats[8 * which] = state.m[which];
        stats[kRows + 8 * which] = state.l[which];
      }
    }
    return true;
  }
  // Whether all other partials of the merge are stored, and seen by all threads, as far as this rank folds them.
  __device__ bool IsLast() {
    Sync();  // all threads have stored
    if (threadIdx.x == 0) {
      const auto count = static_cast<size_t>(merge_number_ * kCtas) + RankInCluster();
      int32_t& arrived = args_.plan.arrived[count];
      // What all threads stored is before it, and what others stored is before what is loaded next.
      const bool is_last =
          ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device>(arrived).fetch_add(
              1, ::cuda::memory_order_acq_rel) == merge_.num_partials - 1;
      if (is_last) arrived = 0;  // for the next kernel
      shared_.parts.is_last = is_last;
    }
    Sync();
    return shared_.parts.is_last;
  }
  // Partials of the merge from `first` on become parts, and what is missing zeros.
  __device__ void BringPartials(int32_t first, int32_t count) {
    Parts& parts = shared_.parts;
    const int64_t partial = merge_.first_partial + first;
    Sync();                             // those that were there are read
    static_assert(kWarp == 2 * kRows);  // a warp brings m and l of a partial
    const float* stats = StatsAt(partial) + lane_;
    const auto stride = static_cast<int32_t>(MlaStateFloats(args_.tile_rows, 512));
#pragma unroll 1
    for (auto i = static_cast<int32_t>(warp_); i < kCtas; i += kWorkers) {
      const float* to = lane_ < kRows ? &parts.m[i][lane_] : &parts.l[i][lane_ - kRows];
      const float* from = stats + (i < count ? i : 0) * stride;
      CopyAsync4(SharedAddress(to), reinterpret_cast<const std::byte*>(from), i < count ? 4 : 0);
    }
    if (HasPatch()) {
      const float4* sums =
          &StateAt(args_, args_.partials, partial).Sums(0, FoldedColumn(), static_cast<int>(lane_));
#pragma unroll 1
      for (int32_t i = 0; i < kCtas; ++i) {
        const float4* from = sums + (i < count ? i : 0) * (stride / 4);
#pragma unroll
        for (int j = 0; j < Parts::kOfAWarp; ++j) {
          CopyAsync16(SharedAddress(&parts.sums[i][FoldedPatch() + j][lane_]),
                      reinterpret_cast<const std::byte*>(from + j * kWarp), i < count ? 16 : 0);
        }
      }
    }
    CommitCopies();
    WaitForCopies<0>();
    Sync();  // all of them have come
  }

  // Into the state; those from `count` on hold zeros. Of the parts' weights each lane of four makes some, and all of
  // them need all.
  __device__ void FoldParts(int32_t count, PatchState<Parts::kOfAWarp>& state) const {
    constexpr int kOwn = kCtas / 4;
    const Parts& parts = shared_.parts;
    float weights[kOwn][2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint32_t row = lane_ / 4 + 8 * static_cast<uint32_t>(which);
      float m[kOwn], top = state.m[which], l = 0.0f;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int32_t part = static_cast<int32_t>(lane_ % 4) * kOwn + i;
        m[i] = part < count ? parts.m[part][row] : -INFINITY;
        top = fmaxf(top, m[i]);
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float anchor = Anchor(top);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int32_t part = static_cast<int32_t>(lane_ % 4) * kOwn + i;
        weights[i][which] = Base2Exponent::Exp(m[i] - anchor);
        l = __fmaf_rn(weights[i][which], parts.l[part][row], l);
      }
      l += __shfl_xor_sync(kAllLanes, l, 1);
      l += __shfl_xor_sync(kAllLanes, l, 2);
      const float before = Base2Exponent::Exp(state.m[which] - anchor);
      state.m[which] = top;
      state.l[which] = __fmaf_rn(before, state.l[which], l);
#pragma unroll
      for (float4& sums : state.sums) {
        (which == 0 ? sums.x : sums.z) *= before;
        (which == 0 ? sums.y : sums.w) *= before;
      }
    }
#pragma unroll
    for (int owner = 0; owner < 4; ++owner) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int from = static_cast<int>(lane_ / 4 * 4) + owner;
        AddPart(owner * kOwn + i, __shfl_sync(kAllLanes, weights[i][0], from),
                __shfl_sync(kAllLanes, weights[i][1], from), state);
      }
    }
  }
  __device__ void AddPart(int32_t part, float weight, float weight_below,
                          PatchState<Parts::kOfAWarp>& state) const {
#pragma unroll
    for (int i = 0; i < Parts::kOfAWarp; ++i) {
      const float4 later = shared_.parts.sums[part][FoldedPatch() + i][lane_];
      float4& sums = state.sums[i];
      sums.x = __fmaf_rn(weight, later.x, sums.x);
      sums.y = __fmaf_rn(weight, later.y, sums.y);
      sums.z = __fmaf_rn(weight_below, later.z, sums.z);
      sums.w = __fmaf_rn(weight_below, later.w, sums.w);
    }
  }

  // ---- Results ----

  template <int kCount>
  __device__ void StorePartial(int64_t index, int32_t column,
                               const PatchState<kCount>& state) const {
    if (index >= args_.max_partials) {
      if (column == 0 && lane_ == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return;
    }
    const StateView to = StateAt(args_, args_.partials, index);
    float4* const sums = &to.Sums(0, column, static_cast<int>(lane_));
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i * kWarp] = state.sums[i];
    if (column != 0 || lane_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const auto row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.tile_rows) return;
      to.m[row] = state.m[which];
      to.l[row] = state.l[which];
    }
  }
  template <int kCount>
  __device__ void WriteResult(const FewPiece& few, int32_t column,
                              const PatchState<kCount>& state) const {
    const int32_t own = column + static_cast<int32_t>(lane_) % 4 * 2;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.num_heads) break;
      const float factor = ShareOfOne(state.l[which]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float4& sums = state.sums[i];
        const float x = (which == 0 ? sums.x : sums.z) * factor;
        const float y = (which == 0 ? sums.y : sums.w) * factor;
        // A tile is one token, whose heads are its rows.
        if (args_.out.is_bf16) {
          *reinterpret_cast<uint32_t*>(args_.out.Row<Bf16>(few.token, row) + own + i * 8) =
              PackBf16(x, y);
        } else {
          *reinterpret_cast<float2*>(args_.out.Row<float>(few.token, row) + own + i * 8) =
              make_float2(x, y);
        }
      }
    }
    if (own != 0 || args_.lse.data == nullptr) return;
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * which;
      if (row >= args_.num_heads) return;
      const float m = which == 0 ? state.m[0] : state.m[1];
      const float l = which == 0 ? state.l[0] : state.l[1];
      WriteLse(args_, few.token, row, l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m, l));
    }
  }

  // What the warp's scores are of.
  __device__ uint32_t Quarter() const { return warp_ % kQuarters; }
  __device__ int32_t OwnRow() const { return static_cast<int32_t>(warp_ * 2 + lane_ / kRowLanes); }

  __device__ void Sync() const { SyncThreads<kWorkers * kWarp>(1); }

  const FewArgs& args_;
  SharedFew<kCtas>& shared_;
  const uint32_t warp_, lane_;
  const float scale_;
  uint32_t q_[kQuarterSteps][4];
  float o_[kColumns / 8][4];
  Sight sight_;
  float m_ = 0, l_ = 0;  // of the row that the lane weighs; m not scaled, l of the lane's keys
  RingPosition<SharedFew<kCtas>::kStages> ring_;
  uint32_t asked_parity_ = 0;
  // Of a cluster: whether parts of a piece were given, and phases of their barriers.
  bool parts_begun_ = false;
  Merge merge_;  // of the piece
  int32_t merge_number_ = 0;
  uint32_t parts_parity_ = 0, read_parity_ = 0;
};

}  // namespace quire::cuda::mla::few

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_WORKER_CUH_
