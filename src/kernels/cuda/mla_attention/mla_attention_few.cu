// Latent attention of few rows: query heads of a token, 16 at most, over bf16 rows of 512 + 64 values, outside of
// exact mode. Reading keys bounds it, or for short sequences the way to the first of them.
//
// A CTA has every key of a piece, 32 at a time: a stage.
//
//   producers   four warps: look up pages and copy keys, as far ahead as there is room
//   workers     eight warps. For scores each has a quarter of the values and half of the keys; the quarters meet in
//               shared memory. Then each makes the weights of two rows, and with everybody's weights adds values
//               to its 64 columns.
#include "device/cuda/launch.h"
#include "kernels/cuda/mla_attention/mla_attention_work.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {
namespace mla::few {
namespace {

constexpr int kWorkers = 8, kProducers = 4;  // warps
constexpr int32_t kStageKeys = 32;
constexpr uint32_t kRowBytes = 2 * (512 + 64);
// Rows that follow each other begin 16 bytes further in the banks, so that eight of them are read at once.
constexpr uint32_t kRowPitch = kRowBytes + 16;
// Of a worker: products of 16 values for scores, and columns of values.
constexpr int kQuarters = 4, kQuarterSteps = (512 + 64) / 16 / kQuarters;
constexpr int kColumns = 512 / kWorkers;

constexpr int kRows = kMlaFewRows, kStages = 5;

struct SharedFew {
  alignas(128) std::byte q[kRows][kRowPitch];
  std::byte keys[kStages][kStageKeys][kRowPitch];
  float scores[kQuarters][kRows][kStageKeys + 8];
  Bf16 weights[kRows][kStageKeys + 8];
  float alpha[kRows];                          // what sums before the stage are multiplied with
  float2 stats[kRows];                         // m and l, when a piece ends
  PhaseBarrier full[kStages], empty[kStages];  // keys have come; nobody reads them any more
  PhaseBarrier asked, heard;                   // queries have come; everybody has them
};
static_assert(sizeof(SharedFew) <= 232448, "227 KiB a CTA");

// A piece, and the keys [begin, end) that its token sees, or that other nodes of its tree do.
struct FewPiece {
  Piece piece;
  RowBlock block;
  int32_t begin, end;

  static __device__ FewPiece Of(const MlaKernelArgs& args, const Piece& piece) {
    RowBlock block = RowBlock::Of(args, piece.tile, 0, kRows);
    block.GoOverNodesTogether(args);
    const auto split = static_cast<int32_t>(args.plan.work.split.raw());
    // Nodes may reach behind what the longest path sees.
    const int32_t last = piece.last == piece.num_splits ? block.kv_end : piece.last * split;
    return {.piece = piece,
            .block = block,
            .begin = piece.first * split,
            .end = min(last, block.kv_end)};
  }
};

// Calls fn(few) for the pieces of a worker.
template <class Fn>
__device__ void ForEachFewPiece(const MlaKernelArgs& args, int32_t worker, Fn fn) {
  ForEachPiece(args.plan, worker, [&](const Piece& piece) {
    if (piece.tile.q_begin.raw() + piece.tile.q_count > args.num_tokens) return;
    fn(FewPiece::Of(args, piece));
  });
}

// The keys that the token sees: the first of them, and nodes of its path.
struct Sight {
  int32_t keys = 0;
  int32_t nodes_begin = INT32_MAX;
  uint64_t nodes = 0;

  static __device__ Sight Of(const MlaKernelArgs& args, const RowBlock& block) {
    if (!block.HasNodesTogether()) return {.keys = block.VisibleTo(args, 0)};
    return {.keys = min(block.nodes_begin, block.kv_end),
            .nodes_begin = block.nodes_begin,
            .nodes = block.NodesOf(args, 0)};
  }
  __device__ bool Has(int32_t key) const {
    const int32_t node = key - nodes_begin;
    return key < keys || (node >= 0 && node < 64 && (nodes >> node & 1) != 0);
  }
};

// Each of its warps copies eight keys of a stage.
class FewProducer {
 public:
  __device__ FewProducer(const MlaKernelArgs& args, SharedFew& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarp % kProducers),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarp) {}

  __device__ void Run(int32_t worker) {
    ForEachFewPiece(args_, worker, [&](const FewPiece& few) {
      CopyQueries(few.block);
      CopyKeys(few);
    });
  }

 private:
  // Rows that there are not are the first one's.
  __device__ void CopyQueries(const RowBlock& block) {
    shared_.heard.Wait(asked_parity_ ^ 1);
    const int32_t to = warp_ * 4 + lane_ / 8, row = to < block.num_rows ? to : 0;
    const Bf16* from = args_.q.Row<Bf16>(block.tile.q_begin.raw(), block.HeadOf(row));
    CopyRow(shared_.q[to], reinterpret_cast<const std::byte*>(from), true);
    shared_.asked.ArriveAfterCopies();
    asked_parity_ ^= 1;
  }

  // A key takes two steps to be found, each of which asks memory for what the next one needs: they are taken one and
  // two stages before it is copied, each key by a lane of every eight. Behind the last key comes the last one again,
  // which nobody sees there, and for a node of another path zeros.
  __device__ void CopyKeys(const FewPiece& few) {
    if (few.begin >= few.end) return;
    const int32_t token = few.block.HasNodesTogether() ? 0 : kAllTokens;
    int32_t listed = RowBlock::kNoKey;
    PagedKey paged = {.page = 0, .offset = RowBlock::kNoKey};
#pragma unroll 1
    for (int32_t ahead = few.begin; ahead < few.end + 2 * kStageKeys; ahead += kStageKeys) {
      const int64_t slot = few.block.SlotOf(args_, paged);
      paged = few.block.PageOf(args_, listed);
      const Pass pass{.key = min(ahead, few.end - 1), .token = token};
      const int32_t own = min(warp_ * 8 + lane_ % 8, few.end - 1 - pass.key);
      listed = few.block.ListedAt(args_, pass, own, few.end);
      if (ahead >= few.begin + 2 * kStageKeys) CopyStage(slot);
    }
  }
  __device__ void CopyStage(int64_t slot) {
    shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
#pragma unroll
    for (int32_t i = 0; i < 8; i += 4) {
      const int32_t row = i + lane_ / 8;
      const int64_t its_slot = __shfl_sync(kAllLanes, slot, row);
      const uint8_t* from = args_.store.LatentRow(its_slot >= 0 ? its_slot : 0);
      CopyRow(shared_.keys[ring_.stage][warp_ * 8 + row], reinterpret_cast<const std::byte*>(from),
              its_slot >= 0);
    }
    shared_.full[ring_.stage].ArriveAfterCopies();
    ring_.Advance();
  }
  // By eight lanes; zeros where there is none.
  __device__ void CopyRow(const std::byte* to, const std::byte* from, bool is_row) const {
    const uint32_t chunk = static_cast<uint32_t>(lane_) % 8 * 16;
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes; i += 128) {
      CopyAsync16(SharedAddress(to) + chunk + i, from + chunk + i, is_row ? 16 : 0);
    }
  }

  const MlaKernelArgs& args_;
  SharedFew& shared_;
  const int32_t warp_, lane_;
  RingPosition<kStages> ring_;
  uint32_t asked_parity_ = 0;
};

// A lane of a product has, with group = lane / 4, rows group and group + 8, and two of every eight keys or columns.
// Of weights a warp makes those of two rows, a lane those of two keys of one row.
class FewWorker {
 public:
  __device__ FewWorker(const MlaKernelArgs& args, SharedFew& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<uint32_t>(threadIdx.x) / kWarp),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp),
        scale_(args.scale * kLog2E) {}

  __device__ void Run(int32_t worker) {
    ForEachFewPiece(args_, worker, [&](const FewPiece& few) {
      Begin(few.block);
#pragma unroll 1
      for (int32_t key = few.begin; key < few.end; key += kStageKeys) RunStage(key);
      Finish(few);
    });
  }

 private:
  static constexpr uint32_t kRowLanes = 16;  // that weigh a row
  static constexpr float kSlack = 8.0f;

  __device__ void Begin(const RowBlock& block) {
    sight_ = Sight::Of(args_, block);
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
    Tell(shared_.heard);
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
    Tell(shared_.empty[ring_.stage]);
    ring_.Advance();
  }

  // ---- Scores and weights ----

  __device__ void Score(uint32_t keys) const {
    const uint32_t first = warp_ / kQuarters * 16;
    const uint32_t from = keys + (first + lane_ / 16 * 8 + lane_ % 8) * kRowPitch +
                          lane_ / 8 % 2 * 16 + Quarter() * (32 * kQuarterSteps);
    float s[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      uint32_t b[4];
      LoadMatrices(from + i * 32, b[0], b[1], b[2], b[3]);
      MultiplyBf16(s[0], q_[i], b[0], b[1]);
      MultiplyBf16(s[1], q_[i], b[2], b[3]);
    }
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

  __device__ void Finish(const FewPiece& few) {
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      l_ += __shfl_xor_sync(kAllLanes, l_, lanes);
    }
    Sync();  // those of the piece before are read
    if (lane_ % kRowLanes == 0) shared_.stats[OwnRow()] = make_float2(scale_ * m_, l_);
    Sync();
    if (few.piece.first > 0 || few.piece.last < few.piece.num_splits) {
      StorePartial(few.piece.partial);
    } else if (args_.out.is_bf16) {
      Write<Bf16>(few.block, [](Bf16* to, float x, float y) {
        *reinterpret_cast<uint32_t*>(to) = PackBf16(x, y);
      });
    } else {
      Write<float>(few.block, [](float* to, float x, float y) {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      });
    }
  }

  __device__ void StorePartial(int64_t index) const {
    if (index >= args_.max_partials) {
      if (threadIdx.x == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return;
    }
    const StateView to = StateAt(args_, args_.partials, index);
    float4* const sums =
        &to.Sums(0, static_cast<int32_t>(warp_) * kColumns, static_cast<int>(lane_));
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      sums[i * kWarp] = make_float4(o_[i][0], o_[i][1], o_[i][2], o_[i][3]);
    }
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (row >= args_.tile_rows) return;
    to.m[row] = shared_.stats[row].x;
    to.l[row] = shared_.stats[row].y;
  }

  template <class T, class Store>
  __device__ void Write(const RowBlock& block, Store store) const {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * i;
      if (row >= block.num_rows) return;
      const int64_t token = block.tile.q_begin.raw();
      const float2 stats = shared_.stats[row];
      const float factor = ShareOfOne(stats.y);
      T* const to = args_.out.Row<T>(token, block.HeadOf(row)) + warp_ * kColumns + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const float* const sums = o_[n] + i * 2;
        store(to + n * 8, sums[0] * factor, sums[1] * factor);
      }
      if (warp_ != 0 || lane_ % 4 != 0) continue;
      WriteLse(args_, token, block.HeadOf(row),
               stats.y == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(stats.x, stats.y));
    }
  }

  // What the warp's scores are of.
  __device__ uint32_t Quarter() const { return warp_ % kQuarters; }
  __device__ int32_t OwnRow() const { return static_cast<int32_t>(warp_ * 2 + lane_ / kRowLanes); }

  __device__ void Sync() const { SyncThreads<kWorkers * kWarp>(1); }
  // Of the whole warp: what it read, it has.
  __device__ void Tell(PhaseBarrier& barrier) const {
    __syncwarp();
    if (lane_ == 0) barrier.Arrive();
  }

  const MlaKernelArgs& args_;
  SharedFew& shared_;
  const uint32_t warp_, lane_;
  const float scale_;
  uint32_t q_[kQuarterSteps][4];
  float o_[kColumns / 8][4];
  Sight sight_;
  float m_ = 0, l_ = 0;  // of the row that the lane weighs; m not scaled, l of the lane's keys
  RingPosition<kStages> ring_;
  uint32_t asked_parity_ = 0;
};

__global__ void __launch_bounds__((kWorkers + kProducers) * kWarp, 1)
    MlaFew(const __grid_constant__ MlaKernelArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  SharedFew& shared = *reinterpret_cast<SharedFew*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full[stage].Init(kProducers * kWarp);
      shared.empty[stage].Init(kWorkers);
    }
    shared.asked.Init(kProducers * kWarp);
    shared.heard.Init(kWorkers);
    FenceBarrierInit();
  }
  TakeTurn();
  __syncthreads();
  const auto worker = static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x / kWarp >= kWorkers) {
    FewProducer(args, shared).Run(worker);
  } else {
    FewWorker(args, shared).Run(worker);
  }
}

}  // namespace
}  // namespace mla::few

void LaunchMlaFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                  StatusWord status) {
  using namespace mla::few;
  constexpr int kBytes = static_cast<int>(sizeof(SharedFew));
  Check(cudaFuncSetAttribute(MlaFew, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MlaFew: shared memory");
  LaunchAhead("MlaFew", MlaFew,
              {.grid = dim3(static_cast<unsigned>(args.plan.work.num_workers)),
               .block = dim3((kWorkers + kProducers) * kWarp),
               .shared_bytes = static_cast<size_t>(kBytes)},
              stream, KernelArgsOf(args, lists, status));
}

}  // namespace quire::cuda
