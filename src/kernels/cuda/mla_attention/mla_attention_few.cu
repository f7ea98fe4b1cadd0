// Latent attention of few rows: query heads of a token or some tokens, 32 at most, over bf16 rows of 512 + 64 values,
// outside of exact mode. Reading keys bounds it, or for short sequences the way to the first of them.
//
// A CTA has every key of a piece, 32 at a time: a stage.
//
//   producers   four warps: look up pages and copy keys, as far ahead as there is room
//   workers     eight warps. For scores each has a quarter of the values, and half of the keys or of the rows; the
//               quarters meet in shared memory. Then each makes the weights of some rows, and with everybody's
//               weights adds values to its 64 columns.
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

// Of blocks of 16 rows: one, or two.
template <int kBlocks>
struct SharedFew {
  static constexpr int kRows = 16 * kBlocks;
  static constexpr int kStages = kBlocks == 1 ? 5 : 4;

  alignas(128) std::byte q[kRows][kRowPitch];
  std::byte keys[kStages][kStageKeys][kRowPitch];
  float scores[kQuarters][kRows][kStageKeys + 8];
  Bf16 weights[kRows][kStageKeys + 8];
  float alpha[kRows];                          // what sums before the stage are multiplied with
  float2 stats[kRows];                         // m and l, when a piece ends
  PhaseBarrier full[kStages], empty[kStages];  // keys have come; nobody reads them any more
  PhaseBarrier asked, heard;                   // queries have come; everybody has them
};
static_assert(sizeof(SharedFew<1>) <= 232448 && sizeof(SharedFew<2>) <= 232448, "227 KiB a CTA");

// A piece whose rows all are a CTA's, and the keys [begin, end) that some of them see.
struct FewPiece {
  Piece piece;
  RowBlock block;
  int32_t begin, end;

  static __device__ FewPiece Of(const MlaKernelArgs& args, const Piece& piece, int32_t most_rows) {
    RowBlock block = RowBlock::Of(args, piece.tile, 0, most_rows);
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
__device__ void ForEachFewPiece(const MlaKernelArgs& args, int32_t worker, int32_t most_rows,
                                Fn fn) {
  ForEachPiece(args.plan, worker, [&](const Piece& piece) {
    if (piece.tile.q_begin.raw() + piece.tile.q_count > args.num_tokens) return;
    fn(FewPiece::Of(args, piece, most_rows));
  });
}

// The keys that a token sees: the first of them, and nodes of its path.
struct Sight {
  int32_t keys = 0;
  int32_t nodes_begin = INT32_MAX;
  uint64_t nodes = 0;

  // Not inlined: it is called from several places, and a short piece waits for its instructions.
  static __device__ __noinline__ Sight Of(const MlaKernelArgs& args, const RowBlock& block,
                                          int32_t token) {
    if (!block.HasNodesTogether()) return {.keys = block.VisibleTo(args, token)};
    return {.keys = min(block.nodes_begin, block.kv_end),
            .nodes_begin = block.nodes_begin,
            .nodes = block.NodesOf(args, token)};
  }
  __device__ bool Has(int32_t key) const {
    const int32_t node = key - nodes_begin;
    return key < keys || (node >= 0 && node < 64 && (nodes >> node & 1) != 0);
  }
};

// Each of its warps copies eight keys of a stage.
template <int kBlocks>
class FewProducer {
 public:
  using Shared = SharedFew<kBlocks>;

  __device__ FewProducer(const MlaKernelArgs& args, Shared& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarp % kProducers),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarp) {}

  __device__ void Run(int32_t worker) {
    ForEachFewPiece(args_, worker, Shared::kRows, [&](const FewPiece& few) {
      CopyQueries(few.block);
      CopyKeys(few);
    });
  }

 private:
  // Rows that there are not are the first one's.
  __device__ void CopyQueries(const RowBlock& block) {
    shared_.heard.Wait(asked_parity_ ^ 1);
#pragma unroll
    for (int32_t i = 0; i < Shared::kRows; i += 16) {
      const int32_t to = i + warp_ * 4 + lane_ / 8, row = to < block.num_rows ? to : 0;
      const Bf16* from =
          args_.q.Row<Bf16>(block.tile.q_begin.raw() + block.TokenOf(row), block.HeadOf(row));
      CopyRow(shared_.q[to], reinterpret_cast<const std::byte*>(from));
    }
    shared_.asked.ArriveAfterCopies();
    asked_parity_ ^= 1;
  }

  // A key takes two steps to be found, each of which asks memory for what the next one needs: they are taken one and
  // two stages before it is copied, each key by a lane of every eight. Behind the last key comes the last one again,
  // which nobody sees there.
  __device__ void CopyKeys(const FewPiece& few) {
    if (few.begin >= few.end) return;
    int32_t listed = RowBlock::kNoKey;
    PagedKey paged = {.page = 0, .offset = RowBlock::kNoKey};
#pragma unroll 1
    for (int32_t ahead = few.begin; ahead < few.end + 2 * kStageKeys; ahead += kStageKeys) {
      const int64_t slot = few.block.SlotOf(args_, paged);
      paged = few.block.PageOf(args_, listed);
      const Pass pass{.key = min(ahead, few.end - 1), .token = kAllTokens};
      const int32_t own = min(warp_ * 8 + lane_ % 8, few.end - 1 - pass.key);
      listed = few.block.ListedAt(args_, pass, own, few.end);
      if (slot >= 0) CopyStage(slot);
    }
  }
  __device__ void CopyStage(int64_t slot) {
    shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
#pragma unroll
    for (int32_t i = 0; i < 8; i += 4) {
      const int32_t row = i + lane_ / 8;
      const uint8_t* from = args_.store.LatentRow(__shfl_sync(kAllLanes, slot, row));
      CopyRow(shared_.keys[ring_.stage][warp_ * 8 + row], reinterpret_cast<const std::byte*>(from));
    }
    shared_.full[ring_.stage].ArriveAfterCopies();
    ring_.Advance();
  }
  // By eight lanes.
  __device__ void CopyRow(const std::byte* to, const std::byte* from) const {
    const uint32_t chunk = static_cast<uint32_t>(lane_) % 8 * 16;
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes; i += 128) {
      CopyAsync16(SharedAddress(to) + chunk + i, from + chunk + i, 16);
    }
  }

  const MlaKernelArgs& args_;
  Shared& shared_;
  const int32_t warp_, lane_;
  RingPosition<Shared::kStages> ring_;
  uint32_t asked_parity_ = 0;
};

// A lane of a product has, with group = lane / 4, rows group and group + 8 of a block, and two of every eight keys or
// columns. Of weights a warp makes those of 2 kBlocks rows, a lane those of 2 kBlocks keys of one row.
template <int kBlocks>
class FewWorker {
 public:
  using Shared = SharedFew<kBlocks>;

  __device__ FewWorker(const MlaKernelArgs& args, Shared& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<uint32_t>(threadIdx.x) / kWarp),
        lane_(static_cast<uint32_t>(threadIdx.x) % kWarp),
        scale_(args.scale * kLog2E) {}

  __device__ void Run(int32_t worker) {
    ForEachFewPiece(args_, worker, Shared::kRows, [&](const FewPiece& few) {
      Begin(few.block);
#pragma unroll 1
      for (int32_t key = few.begin; key < few.end; key += kStageKeys) RunStage(few, key);
      Finish(few);
    });
  }

 private:
  static constexpr int kOwnKeys = 2 * kBlocks;  // of the row that a lane weighs
  static constexpr uint32_t kRowLanes = kStageKeys / kOwnKeys;
  static constexpr int kPairs = kBlocks;  // of eight keys each, that a warp scores
  static constexpr float kSlack = 8.0f;

  __device__ void Begin(const RowBlock& block) {
    const bool is_row = OwnRow() < block.num_rows;
    sight_ = is_row ? Sight::Of(args_, block, block.TokenOf(OwnRow())) : Sight{};
    seen_by_all_ =
        Sight::Of(args_, block, 0).keys;  // queries ascend, and nodes see every committed key
    m_ = -INFINITY;
    l_ = 0.0f;
#pragma unroll
    for (auto& sums : o_) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i / 4][i % 4] = 0.0f;
    }
    shared_.asked.Wait(asked_parity_);
    const uint32_t from = SharedAddress(shared_.q[ScoredBlock() * 16 + lane_ % 16]) +
                          lane_ / 16 * 16 + Quarter() * (32 * kQuarterSteps);
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
      LoadMatrices(from + i * 32, q_[i][0], q_[i][1], q_[i][2], q_[i][3]);
    }
    Tell(shared_.heard);
    asked_parity_ ^= 1;
  }

  __device__ void RunStage(const FewPiece& few, int32_t key) {
    const uint32_t keys = SharedAddress(shared_.keys[ring_.stage]);
    shared_.full[ring_.stage].Wait(ring_.parity);
    Score(keys);
    Sync();  // scores are written, and weights of the stage before are read
    Weigh(key);
    Sync();  // weights are written, and scores are read
    Rescale();
    if (key + kStageKeys <= seen_by_all_ || few.end <= seen_by_all_ || !HasNonFinite(keys)) {
      AddValues(keys);
    } else {
      AddValuesByToken(few.block, keys, key);
    }
    Tell(shared_.empty[ring_.stage]);
    ring_.Advance();
  }

  // ---- Scores and weights ----

  __device__ void Score(uint32_t keys) const {
    const uint32_t first = kBlocks == 1 ? warp_ / kQuarters * 16 : 0;
    const uint32_t from = keys + (first + lane_ / 16 * 8 + lane_ % 8) * kRowPitch +
                          lane_ / 8 % 2 * 16 + Quarter() * (32 * kQuarterSteps);
    float s[2 * kPairs][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kQuarterSteps; ++i) {
#pragma unroll
      for (uint32_t pair = 0; pair < kPairs; ++pair) {
        uint32_t b[4];
        LoadMatrices(from + pair * 16 * kRowPitch + i * 32, b[0], b[1], b[2], b[3]);
        MultiplyBf16(s[2 * pair], q_[i], b[0], b[1]);
        MultiplyBf16(s[2 * pair + 1], q_[i], b[2], b[3]);
      }
    }
    const uint32_t row = ScoredBlock() * 16 + lane_ / 4, column = first + lane_ % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < 2 * kPairs; ++i) {
      float(&scores)[Shared::kRows][kStageKeys + 8] = shared_.scores[Quarter()];
      *reinterpret_cast<float2*>(&scores[row][column + i * 8]) = make_float2(s[i][0], s[i][1]);
      *reinterpret_cast<float2*>(&scores[row + 8][column + i * 8]) = make_float2(s[i][2], s[i][3]);
    }
  }

  // exp2(scale (score - m)). m follows the maximum only where weights would pass 2^kSlack otherwise, so that sums
  // are seldom multiplied.
  __device__ void Weigh(int32_t key) {
    const uint32_t row = OwnRow(), first = lane_ % kRowLanes * kOwnKeys;
    float s[kOwnKeys] = {};
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const auto* from = reinterpret_cast<const float2*>(&shared_.scores[quarter][row][first]);
#pragma unroll
      for (int i = 0; i < kOwnKeys / 2; ++i) {
        s[2 * i] += from[i].x;
        s[2 * i + 1] += from[i].y;
      }
    }
    if (key + kStageKeys > seen_by_all_) {
#pragma unroll
      for (int i = 0; i < kOwnKeys; ++i) {
        if (!sight_.Has(key + static_cast<int32_t>(first) + i)) s[i] = -INFINITY;
      }
    }
    float top = s[0];
#pragma unroll
    for (int i = 1; i < kOwnKeys; ++i) top = fmaxf(top, s[i]);
#pragma unroll
    for (int lanes = 1; lanes < static_cast<int>(kRowLanes); lanes *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
    }
    const float before = m_;
    if (scale_ * (top - before) > kSlack) m_ = top;
    const float anchor = scale_ * Anchor(m_);
    const float alpha = Base2Exponent::Exp(scale_ * before - anchor);  // 1 where m stays
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      s[i] = Base2Exponent::Exp(__fmaf_rn(scale_, s[i], -anchor));
      sum += s[i];
    }
    l_ = __fmaf_rn(alpha, l_, sum);
    auto* to = reinterpret_cast<uint32_t*>(&shared_.weights[row][first]);
#pragma unroll
    for (int i = 0; i < kOwnKeys / 2; ++i) to[i] = PackBf16(s[2 * i], s[2 * i + 1]);
    if (lane_ % kRowLanes == 0) shared_.alpha[row] = alpha;
  }

  // ---- Values ----

  // Multiplies older sums.
  __device__ void Rescale() {
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const float alpha[2] = {shared_.alpha[block * 16 + lane_ / 4],
                              shared_.alpha[block * 16 + lane_ / 4 + 8]};
      if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) continue;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) o_[block][i / 4][i % 4] *= alpha[i % 4 / 2];
    }
  }

  // Weights of 16 keys.
  __device__ void LoadWeights(uint32_t step, uint32_t (&weights)[kBlocks][4]) const {
#pragma unroll
    for (uint32_t block = 0; block < kBlocks; ++block) {
      auto& w = weights[block];
      LoadMatrices(
          SharedAddress(&shared_.weights[block * 16 + lane_ % 16][step * 16 + lane_ / 16 * 8]),
          w[0], w[1], w[2], w[3]);
    }
  }
  // Values of 16 keys and columns.
  __device__ void LoadValues(uint32_t keys, uint32_t step, uint32_t pair, uint32_t (&b)[4]) const {
    const uint32_t from = keys + (step * 16 + lane_ % 16) * kRowPitch + lane_ / 16 * 16;
    LoadMatricesTransposed(from + (warp_ * kColumns + pair * 16) * 2, b[0], b[1], b[2], b[3]);
  }

  __device__ void AddValues(uint32_t keys) {
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t weights[kBlocks][4];
      LoadWeights(step, weights);
#pragma unroll
      for (uint32_t pair = 0; pair < kColumns / 16; ++pair) {
        uint32_t b[4];
        LoadValues(keys, step, pair, b);
#pragma unroll
        for (uint32_t block = 0; block < kBlocks; ++block) {
          MultiplyBf16(o_[block][2 * pair], weights[block], b[0], b[1]);
          MultiplyBf16(o_[block][2 * pair + 1], weights[block], b[2], b[3]);
        }
      }
    }
  }

  // Whether one of the warp's values is not finite: 0 times it is not 0.
  __device__ bool HasNonFinite(uint32_t keys) const {
    bool found = false;
#pragma unroll 1
    for (uint32_t i = 0; i < 2 * kColumns / 16; ++i) {
      uint32_t b[4];
      LoadValues(keys, i % 2, i / 2, b);
      found |= cuda::HasNonFinite<kBf16Exponents>(make_uint4(b[0], b[1], b[2], b[3]));
    }
    return __any_sync(kAllLanes, found);
  }
  // Each token's rows with the values that it sees, and zeros for others.
  __device__ void AddValuesByToken(const RowBlock& block, uint32_t keys, int32_t key) {
#pragma unroll 1
    for (int32_t token = block.first_token; token <= block.last_token; ++token) {
      const Sight sight = Sight::Of(args_, block, token);
      bool is_own[2 * kBlocks];
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        is_own[i] = block.TokenOf(static_cast<int32_t>(lane_) / 4 + 8 * i) == token;
      }
#pragma unroll 1
      for (uint32_t step = 0; step < 2; ++step) {
        uint32_t weights[kBlocks][4];
        LoadWeights(step, weights);
        const uint32_t first = step * 16 + lane_ % 4 * 2;
        const uint32_t seen[2] = {SeenPair(sight, key, first), SeenPair(sight, key, first + 8)};
#pragma unroll
        for (uint32_t pair = 0; pair < kColumns / 16; ++pair) {
          uint32_t b[4];
          LoadValues(keys, step, pair, b);
#pragma unroll
          for (uint32_t i = 0; i < 2 * kBlocks; ++i) {
            float(&sums)[4] = o_[i / 2][2 * pair + i % 2];
            float added[4] = {sums[0], sums[1], sums[2], sums[3]};
            MultiplyBf16(added, weights[i / 2], b[i % 2 * 2] & seen[0], b[i % 2 * 2 + 1] & seen[1]);
#pragma unroll
            for (uint32_t at = 0; at < 4; ++at) {
              sums[at] = Select(is_own[i / 2 * 2 + at / 2], added[at], sums[at]);
            }
          }
        }
      }
    }
  }
  // All bits of a value where the key is seen, of two keys that follow each other.
  static __device__ uint32_t SeenPair(const Sight& sight, int32_t key, uint32_t first) {
    const int32_t at = key + static_cast<int32_t>(first);
    return (sight.Has(at) ? 0xffffu : 0u) | (sight.Has(at + 1) ? 0xffff0000u : 0u);
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
#pragma unroll
    for (int32_t block = 0; block < kBlocks; ++block) {
      if (block * 16 >= args_.tile_rows) break;
      float4* const sums =
          &to.Sums(block * 16, static_cast<int32_t>(warp_) * kColumns, static_cast<int>(lane_));
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const float(&from)[4] = o_[block][i];
        sums[i * kWarp] = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (row >= args_.tile_rows) return;
    to.m[row] = shared_.stats[row].x;
    to.l[row] = shared_.stats[row].y;
  }

  template <class T, class Store>
  __device__ void Write(const RowBlock& block, Store store) const {
#pragma unroll
    for (int32_t i = 0; i < 2 * kBlocks; ++i) {
      const int32_t row = static_cast<int32_t>(lane_) / 4 + 8 * i;
      if (row >= block.num_rows) return;
      const int64_t token = block.tile.q_begin.raw() + block.TokenOf(row);
      const float2 stats = shared_.stats[row];
      const float factor = ShareOfOne(stats.y);
      T* const to = args_.out.Row<T>(token, block.HeadOf(row)) + warp_ * kColumns + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const float* const sums = o_[i / 2][n] + i % 2 * 2;
        store(to + n * 8, sums[0] * factor, sums[1] * factor);
      }
      if (warp_ != 0 || lane_ % 4 != 0) continue;
      WriteLse(args_, token, block.HeadOf(row),
               stats.y == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(stats.x, stats.y));
    }
  }

  // What the warp's scores are of.
  __device__ uint32_t Quarter() const { return warp_ % kQuarters; }
  __device__ uint32_t ScoredBlock() const { return kBlocks == 1 ? 0 : warp_ / kQuarters; }
  __device__ int32_t OwnRow() const {
    return static_cast<int32_t>(warp_ * (2 * kBlocks) + lane_ / kRowLanes);
  }

  __device__ void Sync() const { SyncThreads<kWorkers * kWarp>(1); }
  // Of the whole warp: what it read, it has.
  __device__ void Tell(PhaseBarrier& barrier) const {
    __syncwarp();
    if (lane_ == 0) barrier.Arrive();
  }

  const MlaKernelArgs& args_;
  Shared& shared_;
  const uint32_t warp_, lane_;
  const float scale_;
  uint32_t q_[kQuarterSteps][4];
  float o_[kBlocks][kColumns / 8][4];
  Sight sight_;  // of the row that the lane weighs
  int32_t seen_by_all_ = 0;
  float m_ = 0, l_ = 0;  // of that row; m not scaled, l of the lane's keys
  RingPosition<Shared::kStages> ring_;
  uint32_t asked_parity_ = 0;
};

template <int kBlocks>
__global__ void __launch_bounds__((kWorkers + kProducers) * kWarp, 1)
    MlaFew(const __grid_constant__ MlaKernelArgs args) {
  using Shared = SharedFew<kBlocks>;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kStages; ++stage) {
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
    FewProducer<kBlocks>(args, shared).Run(worker);
  } else {
    FewWorker<kBlocks>(args, shared).Run(worker);
  }
}

template <int kBlocks>
void LaunchBlocks(const MlaKernelArgs& args, const Stream& stream) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedFew<kBlocks>));
  Check(cudaFuncSetAttribute(MlaFew<kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MlaFew: shared memory");
  LaunchAhead("MlaFew", MlaFew<kBlocks>,
              {.grid = dim3(static_cast<unsigned>(args.plan.work.num_workers)),
               .block = dim3((kWorkers + kProducers) * kWarp),
               .shared_bytes = static_cast<size_t>(kBytes)},
              stream, args);
}

}  // namespace
}  // namespace mla::few

void LaunchMlaFew(const MlaAttentionArgs& args, const KeyLists& lists, const Stream& stream,
                  StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, lists, status);
  if (kernel_args.tile_rows <= 16) {
    mla::few::LaunchBlocks<1>(kernel_args, stream);
  } else {
    mla::few::LaunchBlocks<2>(kernel_args, stream);
  }
}

}  // namespace quire::cuda
