// Choosing keys on tensor cores: e4m3 keys of 128 values, up to 64 heads.
//
//   producers   three warps, a stage of 128 keys each in turn: look up pages, copy codes and scales
//   scorers     three warpgroups: make the query e4m3, two codes a value; then every third stage each:
//               products of 64 keys x all heads' codes, the weighted sum over heads, and candidates to
//               the search, which they all are
//
// A dot is a chain of four products over the values for each code, and the sum of the two. A score is a
// chain of multiply-adds over heads 2t, 2t + 1 of every eight, and the sum of four such: neither pages
// nor workers change a bit.
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/select_keys/select_keys_search.cuh"

namespace quire::cuda {
namespace select {
namespace {

constexpr int kStages = 6;
constexpr int kScorers = 3;
constexpr int kProducerWarps = 3;  // of a warpgroup, the last of whose warps has nothing to do
constexpr int kSearchThreads = kScorers * kWarpgroup;
constexpr int kChooseThreads = kSearchThreads + kWarpgroup;
// Registers of a thread. They begin with 128 each: what scorers take, producers have given back.
constexpr int kScorerRegisters = 144, kProducerRegisters = 72;
static_assert(kScorers * kScorerRegisters + kProducerRegisters <= (kScorers + 1) * 128);
// A stage is always of one producer, and in a piece of one scorer: who waits for a phase of its barriers
// has seen the one before, and could not tell it from the one before that.
static_assert(kStages % kProducerWarps == 0 && kStages % kScorers == 0);
constexpr int kStageKeys = 2 * kTileKeys;  // of which a product takes half
// Rounds of stages, one for each scorer, between two looks whether there is room for candidates.
constexpr uint32_t kRounds = 8;
static_assert(kRounds * kScorers * kStageKeys <= kMostOffers);
constexpr uint32_t kRowBytes = kCodeValues;  // a row of a panel
constexpr uint32_t kTileBytes = kTileKeys * kRowBytes;
constexpr int kQueryCodes =
    2;  // of a value: one loses keys that f32 queries choose (docs/numerics.md)

struct SharedKeys {
  alignas(1024) std::byte keys[kStages][2 * kTileBytes];
  alignas(1024) std::byte q[kQueryCodes * kCodeHeads * kRowBytes];
  alignas(128) float scales[kStages][kStageKeys];
  float gates[kCodeHeads];    // times the queries' scales
  bool needs_fence[kStages];  // copies of threads that did not wait for them
  PhaseBarrier full[kStages], empty[kStages];
  SearchMemory search;
};
static_assert(sizeof(SharedKeys) + kMostSharedCandidates * sizeof(uint64_t) <= 232448,
              "227 KiB a CTA");

// Where a role is in the ring, for the number of a stage in all.
struct StageOf {
  int stage;
  uint32_t parity;
  __device__ explicit StageOf(uint32_t number)
      : stage(static_cast<int>(number % kStages)), parity(number / kStages & 1) {}
};

// Stages that a piece's keys fill.
__device__ inline uint32_t NumStages(const KeyRange& keys) {
  return static_cast<uint32_t>((keys.end - keys.begin + kStageKeys - 1) / kStageKeys);
}

// ---- Producers ----

// How whole tiles come, where pages and layout allow: boxes of `rows` keys, 0 where they do not.
struct KeyBoxes {
  CUtensorMap map;
  int32_t rows;
};

// kWord: bytes copied at once where there are no boxes; all of a page begins on a multiple of it.
template <int kWord>
class Producer {
 public:
  __device__ Producer(const SelectKernelArgs& args, const KeyBoxes& boxes, SharedKeys& shared,
                      int warp)
      : args_(args),
        boxes_(boxes),
        shared_(shared),
        warp_(static_cast<uint32_t>(warp)),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        policy_(ReadOncePolicy()) {}

  __device__ void Run(int32_t worker) {
    uint32_t first_stage = 0;
    ForEachQuery(args_, worker, [&](const Piece& piece) {
      if (ReadsNone(piece)) return;
      const KeyRange keys = KeyRange::Of(piece);
      RunPiece(piece.tile, keys, first_stage);
      first_stage += NumStages(keys);
    });
  }

 private:
  static constexpr int kLaneRows = kStageKeys / kWarp;

  struct Place {
    int32_t page;
    int32_t row;  // in the page
  };
  // Where a stage's keys are.
  struct Places {
    int32_t num_boxed;      // keys that come in boxes: the first ones
    int32_t num_keys;       // of all
    Place box;              // of this lane
    Place rows[kLaneRows];  // rows lane, lane + 32, ... of the stage, behind the boxes
  };

  // Stages of this warp: those whose number in all is its own, modulo the warps.
  __device__ void RunPiece(const QueryTile& tile, const KeyRange& keys, uint32_t first_stage) {
    pages_ = args_.plan.Row(tile.seq);
    // Keys of a tree's path lie apart.
    contiguous_end_ = min(keys.end, static_cast<int32_t>(args_.plan.committed[tile.seq].raw()));
    const uint32_t num_stages = NumStages(keys);
    const auto first_key = [&](uint32_t i) {
      return keys.begin + static_cast<int32_t>(i) * kStageKeys;
    };
    uint32_t i = (warp_ + kProducerWarps - first_stage % kProducerWarps) % kProducerWarps;
    if (i >= num_stages) return;
    Places next = LookUp(tile, first_key(i), keys.end);
    for (; i < num_stages; i += kProducerWarps) {
      const StageOf at(first_stage + i);
      shared_.empty[at.stage].Wait(at.parity ^ 1);
      Copy(next, at.stage);
      // The page row takes its time to answer, so it is asked while the next stage is still read.
      if (i + kProducerWarps < num_stages) {
        next = LookUp(tile, first_key(i + kProducerWarps), keys.end);
      }
    }
  }

  __device__ Places LookUp(const QueryTile& tile, int32_t first, int32_t end) const {
    Places places;
    places.num_keys = min(kStageKeys, end - first);
    const int32_t whole = max(0, min(kStageKeys, contiguous_end_ - first));
    places.num_boxed = boxes_.rows > 0 ? whole & -boxes_.rows : 0;
    if (lane_ * boxes_.rows < places.num_boxed) {
      places.box = PlaceOf(tile, first + lane_ * boxes_.rows);
    }
    if (places.num_boxed < places.num_keys) {
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const int32_t row = lane_ + kWarp * i;
        if (row < places.num_boxed || row >= places.num_keys) continue;
        const int32_t p = first + row;
        places.rows[i] = PlaceOf(tile, p < contiguous_end_ ? p : PositionOf(args_.plan, tile, p));
      }
    }
    return places;
  }

  __device__ Place PlaceOf(const QueryTile& tile, int32_t position) const {
    const int32_t index = args_.pages.PageOf(position);
    int32_t page = index < args_.plan.row_width.raw() ? pages_[index].raw() : -1;
    if (static_cast<uint32_t>(page) >= static_cast<uint32_t>(args_.num_pages)) {
      Report(args_.status, DeviceFault::kPage, quire::cuda::Launch::kSelectKeys,
             static_cast<uint32_t>(tile.seq));
      page = kScratchPage.raw();
    }
    return {.page = page, .row = position - index * args_.pages.page_size};
  }

  __device__ const std::byte* PageAt(int32_t page) const {
    return args_.store.memory + page * args_.store.page_bytes;
  }

  // Rows behind the last key keep what was there: scores of them are dropped.
  __device__ void Copy(const Places& places, int stage) {
    PhaseBarrier& full = shared_.full[stage];
    const bool has_rows = places.num_boxed < places.num_keys;
    if (lane_ == 0) {
      shared_.needs_fence[stage] = has_rows;
      full.ArriveExpecting(static_cast<uint32_t>(places.num_boxed) * (kRowBytes + 4));
    }
    __syncwarp();
    if (lane_ * boxes_.rows < places.num_boxed) CopyBoxOf(places.box, stage);
    if (has_rows) CopyRows(places, stage);
    full.ArriveAfterCopies();
  }

  __device__ void CopyBoxOf(const Place& box, int stage) {
    const int32_t row = lane_ * boxes_.rows;
    const uint32_t full = shared_.full[stage].Address();
    CopyBox(SharedAddress(shared_.keys[stage]) + static_cast<uint32_t>(row) * kRowBytes,
            &boxes_.map, 0, box.row, box.page, full, policy_);
    CopyBytes(SharedAddress(&shared_.scales[stage][row]),
              PageAt(box.page) + args_.store.parts[1].begin + 4 * box.row,
              4 * static_cast<uint32_t>(boxes_.rows), full, policy_);
  }

  __device__ void CopyRows(const Places& places, int stage) {
    const uint32_t to = SharedAddress(shared_.keys[stage]);
    const uint32_t chunk = static_cast<uint32_t>(lane_) % 8,
                   row_of_four = static_cast<uint32_t>(lane_) / 8;
    // This lane's chunk in the first eight rows, of which it copies two; eight rows on it lies alike. (Not
    // told so, the compiler keeps a register for each of the 32 rows, and spills.)
    const uint32_t chunks[2] = {PanelChunk(row_of_four, chunk), PanelChunk(row_of_four + 4, chunk)};
    const bool is_plain = args_.store.parts[0].tile_rows == 1;
    const uint32_t chunk_step = is_plain ? 16 : 16 * kPreshuffleTile;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int32_t own_row = lane_ + kWarp * i;
      const bool is_key = own_row >= places.num_boxed && own_row < places.num_keys;
      const unsigned keys = __ballot_sync(kAllLanes, is_key);
      if (keys == 0) continue;
      const std::byte* page = PageAt(is_key ? places.rows[i].page : 0);
      const int32_t row = is_key ? places.rows[i].row : 0;
      const int32_t offset = is_plain ? row * static_cast<int32_t>(kRowBytes)
                                      : row / kPreshuffleTile * (kPreshuffleTile * kCodeValues) +
                                            row % kPreshuffleTile * 16;
      const auto own = reinterpret_cast<uint64_t>(page + offset);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int from = 4 * k + static_cast<int>(row_of_four);
        const auto* codes = reinterpret_cast<const std::byte*>(__shfl_sync(kAllLanes, own, from));
        if ((keys >> from & 1) == 0) continue;
        CopyChunk(to + chunks[k % 2] + static_cast<uint32_t>(4 * i + k / 2) * (8 * kRowBytes),
                  codes + chunk * chunk_step);
      }
      if (is_key) {
        CopyAsync4(SharedAddress(&shared_.scales[stage][own_row]),
                   page + args_.store.parts[1].begin + 4 * row, 4);
      }
    }
  }

  static __device__ void CopyChunk(uint32_t to, const std::byte* from) {
    if constexpr (kWord == 16) {
      CopyAsync16(to, from, 16);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 16; i += 4) CopyAsync4(to + i, from + i, 4);
    }
  }

  const SelectKernelArgs& args_;
  const KeyBoxes& boxes_;
  SharedKeys& shared_;
  const uint32_t warp_;
  const int lane_;
  const uint64_t policy_;  // of keys that come in boxes
  const PageId* pages_ = nullptr;
  int32_t contiguous_end_ = 0;
};

// ---- Scorers ----

__device__ inline float4 Scaled(float4 v, float factor) {
  return {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor),
          __fmul_rn(v.w, factor)};
}

// Four values as e4m3, to nearest, ties to even. They become what the codes leave out, which is exact.
__device__ inline uint32_t TakeCodes(float4& v) {
  const uint32_t codes = PackCodes(v.x, v.y) | static_cast<uint32_t>(PackCodes(v.z, v.w)) << 16;
  uint32_t first, second;
  WidenToF16(codes, first, second);
  const float2 xy = WidenF16(first), zw = WidenF16(second);
  v = {__fsub_rn(v.x, xy.x), __fsub_rn(v.y, xy.y), __fsub_rn(v.z, zw.x), __fsub_rn(v.w, zw.y)};
  return codes;
}

template <int kHeads>
class Scorer {
 public:
  using TheSearch = Search<kSearchThreads, 1>;

  __device__ Scorer(const SelectKernelArgs& args, SharedKeys& shared, uint64_t* candidates)
      : args_(args),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        scorer_(static_cast<uint32_t>(Uniform(thread_ / kWarpgroup))),
        search_(shared.search, candidates, CandidateRoom(args.shape.top_k), args.shape.top_k,
                thread_) {}

  __device__ void Run(int32_t worker) {
    uint32_t first_stage = 0;
    ForEachQuery(args_, worker, [&](const Piece& piece) {
      if (ReadsNone(piece)) {
        search_.WriteAll(VisibleTo(args_.plan, piece.tile),
                         args_.chosen + piece.tile.q_begin.raw() * args_.shape.top_k);
        return;
      }
      const auto visible = static_cast<int32_t>(piece.tile.kv_end.raw());
      MakeCodes(piece.tile.q_begin.raw());
      search_.Begin();
      ReadGates();
      const KeyRange keys = KeyRange::Of(piece);
      const uint32_t num_stages = NumStages(keys);
      const uint32_t num_rounds = (num_stages + kScorers - 1) / kScorers;
      for (uint32_t round = 0; round < num_rounds; ++round) {
        const uint32_t i = round * kScorers + scorer_;
        if (i < num_stages) {
          ScoreStage(StageOf(first_stage + i), keys.begin + static_cast<int32_t>(i) * kStageKeys,
                     keys.end, visible);
        }
        if (round % kRounds == kRounds - 1) search_.MakeRoom();
      }
      first_stage += num_stages;
      EndPiece(args_, piece, visible, search_);
    });
  }

 private:
  // A thread's sums of 64 keys x all codes: those of first codes, then those of second ones.
  static constexpr int kSums = kQueryCodes * kHeads / 2;

  // The query as e4m3 to shared memory: first codes of all heads, then second ones, which hold what the
  // first leave out, with one scale for each head; and gates times that. Four threads have a head. Nobody
  // reads the query before.
  __device__ void MakeCodes(int64_t token) {
    const int head = thread_ / 4, quarter = thread_ % 4;
    if (head >= kHeads) return;
    float4 values[8] = {};
    const bool is_head = head < args_.shape.num_heads;
    float gate = 0.0f;
    if (is_head) {
      gate = args_.gates[token * args_.gate_stride + head];
      args_.q.Load(token, head, quarter * 32, values);
    }
    float amax = 0.0f;
#pragma unroll
    for (const float4& v : values) amax = fmaxf(amax, MaxMagnitude(v));
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 2));
    const float scale = Fp8Scale(amax), inverse = __frcp_rn(scale);
#pragma unroll
    for (float4& v : values) v = Scaled(v, inverse);
#pragma unroll
    for (int code = 0; code < kQueryCodes; ++code) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = TakeCodes(values[4 * half + i]);
        StoreShared16(
            SharedAddress(shared_.q) + PanelChunk(static_cast<uint32_t>(code * kHeads + head),
                                                  static_cast<uint32_t>(2 * quarter + half)),
            words);
      }
    }
    if (quarter == 0) shared_.gates[head] = __fmul_rn(__fmul_rn(args_.scale, gate), scale);
    FenceForProducts();
  }
  // Those of this thread's columns.
  __device__ void ReadGates() {
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
      gates_[j][0] = shared_.gates[8 * j + thread_ % 4 * 2];
      gates_[j][1] = shared_.gates[8 * j + thread_ % 4 * 2 + 1];
    }
  }

  // The products of 64 keys. Both codes are columns of one product, which reads the keys once for both:
  // a chain of twice as many products would read them twice, and shared memory bounds it.
  __device__ void Multiply(uint32_t keys, float (&sums)[kSums]) {
    BeginProducts();
    const uint32_t a = UniformHere(keys), b = UniformHere(SharedAddress(shared_.q));
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes; i += 32) {
      MultiplyCodes(sums, PanelOperand(a, i), PanelOperand(b, i), i > 0);
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(sums);
  }
  // Of two keys, over this thread's heads.
  __device__ float2 WeightedSums(const float (&sums)[kSums]) const {
    float scores[2] = {};
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float dot = __fadd_rn(sums[4 * j + i], sums[kHeads / 2 + 4 * j + i]);
        scores[i / 2] = __fmaf_rn(gates_[j][i % 2], Relu(dot), scores[i / 2]);
      }
    }
    return {scores[0], scores[1]};
  }

  __device__ void ScoreStage(StageOf at, int32_t first, int32_t end, int32_t visible) {
    const int lane = thread_ % kWarp;
    const bool has_second = lane % 2 == 1, has_high = lane % 4 >= 2;
    const int row = thread_ % kWarpgroup / kWarp * 16 + lane / 4 + (has_second ? 8 : 0) +
                    (has_high ? kTileKeys : 0);
    shared_.full[at.stage].Wait(at.parity);
    if (shared_.needs_fence[at.stage]) FenceForProducts();
    const float scale = shared_.scales[at.stage][row];
    const uint32_t keys = SharedAddress(shared_.keys[at.stage]);
    // Of one array for both, ptxas 13.0 takes the second sums for the first too, and drops those products.
    float sums[2][kSums];
    Multiply(keys, sums[0]);
    const float2 low = WeightedSums(sums[0]);
    Multiply(keys + kTileBytes, sums[1]);
    // The keys are read, and the scale; the rest takes time that the next copy can use.
    shared_.empty[at.stage].Arrive();
    const float2 high = WeightedSums(sums[1]);
    // Each of four lanes gets one of the four keys that they share, and adds what the others have of it.
    const float kept_low = has_second ? low.y : low.x, kept_high = has_second ? high.y : high.x;
    const float of_low = kept_low + __shfl_xor_sync(kAllLanes, has_second ? low.x : low.y, 1);
    const float of_high = kept_high + __shfl_xor_sync(kAllLanes, has_second ? high.x : high.y, 1);
    const float sum =
        (has_high ? of_high : of_low) + __shfl_xor_sync(kAllLanes, has_high ? of_low : of_high, 2);
    const float score = __fmul_rn(sum, scale);
    const int32_t position = first + row;
    search_.Offer(RankOfKey(args_.shape, score, position, visible), position < end);
  }

  const SelectKernelArgs& args_;
  SharedKeys& shared_;
  const int thread_;
  const uint32_t scorer_;
  TheSearch search_;
  float gates_[kHeads / 8][2];
};

template <int kHeads, int kWord>
__global__ void __launch_bounds__(kChooseThreads, 1)
    SelectWarpgroup(const __grid_constant__ SelectKernelArgs args,
                    const __grid_constant__ KeyBoxes boxes) {
  std::byte* const memory = LaunchedShared<1024>();
  SharedKeys& shared = *reinterpret_cast<SharedKeys*>(memory);
  const auto worker = static_cast<int32_t>(blockIdx.x);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full[stage].Init(kWarp + 1);
      shared.empty[stage].Init(kWarpgroup);
    }
    FenceBarrierInit();
  } else if (threadIdx.x == kSearchThreads && boxes.rows > 0) {
    PrefetchTensorMap(&boxes.map);
  }
  TakeTurn();
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / kWarp);
  if (warp >= kSearchThreads / kWarp) {
    GiveRegistersBack<kProducerRegisters>();
    const int producer = warp - kSearchThreads / kWarp;
    if (producer < kProducerWarps) Producer<kWord>(args, boxes, shared, producer).Run(worker);
  } else {
    TakeRegisters<kScorerRegisters>();
    uint64_t* candidates =
        CandidatesOf(args, worker, reinterpret_cast<uint64_t*>(memory + sizeof(SharedKeys)));
    Scorer<kHeads>(args, shared, candidates).Run(worker);
  }
}

// Boxes of a page's rows, of 64 keys at most.
KeyBoxes KeyBoxesOf(const SelectKernelArgs& args) {
  KeyBoxes boxes{};
  if (args.store.parts[0].tile_rows > 1) return boxes;
  for (int32_t rows : {64, 32, 16}) {
    if (args.store.page_size % rows != 0) continue;
    boxes.map = MakeTensorMap({.data = args.store.memory,
                               .rows = args.store.page_size,
                               .columns = kCodeValues / 2,
                               .row_bytes = kCodeValues,
                               .box_rows = rows,
                               .box_columns = kCodeValues / 2,
                               .matrices = args.num_pages,
                               .matrix_bytes = args.store.page_bytes});
    boxes.rows = rows;
    break;
  }
  return boxes;
}

template <int kHeads, int kWord>
void Launch(const SelectKeysArgs& args, const SelectKernelArgs& kernel_args, const Stream& stream) {
  const size_t bytes = sizeof(SharedKeys) + SharedCandidateBytes(args);
  Check(cudaFuncSetAttribute(SelectWarpgroup<kHeads, kWord>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "SelectWarpgroup: shared memory");
  LaunchAhead("SelectWarpgroup", SelectWarpgroup<kHeads, kWord>,
              {static_cast<unsigned>(args.plan.work.num_workers), kChooseThreads, bytes}, stream,
              kernel_args, KeyBoxesOf(kernel_args));
}

template <int kHeads>
void LaunchOf(const SelectKeysArgs& args, const SelectKernelArgs& kernel_args,
              const Stream& stream) {
  const auto begin = reinterpret_cast<uintptr_t>(kernel_args.store.memory);
  const bool is_aligned = begin % 16 == 0 && kernel_args.store.page_bytes % 16 == 0;
  if (is_aligned) {
    Launch<kHeads, 16>(args, kernel_args, stream);
  } else {
    Launch<kHeads, 4>(args, kernel_args, stream);
  }
}

}  // namespace
}  // namespace select

void LaunchSelectWarpgroup(const SelectKeysArgs& args, const SelectScratch& scratch,
                           const Stream& stream, StatusWord status) {
  const select::SelectKernelArgs kernel_args = select::KernelArgsOf(args, scratch, status);
  if (args.shape.num_heads <= 32) {
    select::LaunchOf<32>(args, kernel_args, stream);
  } else {
    select::LaunchOf<64>(args, kernel_args, stream);
  }
}

}  // namespace quire::cuda
