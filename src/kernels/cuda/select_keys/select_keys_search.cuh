// The search for the highest ranks, by the threads of a CTA that a kernel gives to it.
#ifndef QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_SEARCH_CUH_
#define QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_SEARCH_CUH_

#include <cooperative_groups.h>

#include <cstdint>

#include "attn/plan.h"
#include "attn/plan_build.h"
#include "attn/work.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/select_keys/select_keys_launch.h"
#include "kernels/cuda/store/store_row.cuh"
#include "kernels/select_keys.h"

namespace quire::cuda::select {

inline constexpr int kTileKeys = static_cast<int>(kKeyTile.raw());
// Ranks are told apart so many bits at a time. Scores of one sign and size agree in their first nine
// bits; with more, fewer are counted together.
inline constexpr int kDigitBits = 12, kBins = 1 << kDigitBits;
// Bins are looked at in chunks: a lane has four bins of one, or one of all.
inline constexpr int kChunkBins = 4 * kWarp;
static_assert(kBins == kWarp * kChunkBins);
// Candidates above top_k that are kept where it takes too long to tell which of them are chosen.
inline constexpr uint32_t kPruneSlack = 1024;
static_assert(kPruneSlack <= kMostOffers);
// Positions whose order is made at once, a bit each.
inline constexpr int32_t kWindow = 32 * kBins;

// A view's rows of one token, of f32 or bf16.
struct QueryView {
  const std::byte* data;
  int64_t token_stride, head_stride;
  bool is_bf16;

  __device__ float At(int64_t token, int32_t head, int32_t i) const {
    const int64_t at = token * token_stride + head * head_stride + i;
    return is_bf16 ? ToFloat(reinterpret_cast<const Bf16*>(data)[at])
                   : reinterpret_cast<const float*>(data)[at];
  }
  // Values [i, + 4 kQuads) of a head.
  template <int kQuads>
  __device__ void Load(int64_t token, int32_t head, int32_t i, float4 (&to)[kQuads]) const {
    const int64_t at = token * token_stride + head * head_stride + i;
    if (is_bf16) {
      LoadQuads(reinterpret_cast<const Bf16*>(data) + at, to);
    } else {
      LoadQuads(reinterpret_cast<const float*>(data) + at, to);
    }
  }

 private:
  // What they hang on is asked once: between two loads it would keep the second until the first is there.
  template <class T, int kQuads>
  static __device__ void LoadQuads(const T* from, float4 (&to)[kQuads]) {
    if (IsAligned(from, 4 * sizeof(T))) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) to[quad] = LoadFour(from + 4 * quad);
    } else {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const T* four = from + 4 * quad;
        to[quad] = {Widen(four[0]), Widen(four[1]), Widen(four[2]), Widen(four[3])};
      }
    }
  }
};

struct SelectKernelArgs {
  Plan plan;
  StoreView store;
  IndexShape shape;
  QueryView q;
  PageDivider pages;
  int32_t num_pages;
  const float* gates;
  int64_t gate_stride;
  float scale;
  int32_t* chosen;
  int64_t num_tokens;  // that q and chosen hold
  SelectScratch scratch;
  StatusWord status;
};

inline SelectKernelArgs KernelArgsOf(const SelectKeysArgs& args, const SelectScratch& scratch,
                                     StatusWord status) {
  const bool is_bf16 = args.q.dtype() == DType::kBf16;
  const void* q =
      is_bf16 ? static_cast<const void*>(args.q.Address<Bf16>()) : args.q.Address<float>();
  return {.plan = args.plan,
          .store = ReadViewOf(args.store),
          .shape = args.shape,
          .q = {.data = static_cast<const std::byte*>(q),
                .token_stride = args.q.stride(0),
                .head_stride = args.q.stride(1),
                .is_bf16 = is_bf16},
          .pages = DividerOf(args.store.page_size()),
          .num_pages = static_cast<int32_t>(args.store.num_pages().raw()),
          .gates = args.gates.Address<float>(),
          .gate_stride = args.gates.stride(0),
          .scale = args.scale,
          .chosen = args.chosen.data(),
          .num_tokens = args.q.dim(0),
          .scratch = scratch,
          .status = status};
}

// What threads share while they search.
struct SearchMemory {
  alignas(16) uint32_t words[kBins];  // how many ranks have a digit; later, positions as bits
  uint32_t count;                     // candidates
  uint32_t sums[kWarp];
  uint32_t bin, above, inside;  // what a look at the bins has found
};

// The sum of the values of all lanes up to this one.
__device__ inline uint32_t WarpSumThrough(uint32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// The highest ranks of those that kThreads threads, which barrier kBarrier holds together, offer; or
// those of all kCtas CTAs of a cluster.
template <int kThreads, int kBarrier, int kCtas = 1>
class Search {
 public:
  static constexpr int kWarps = kThreads / kWarp;

  __device__ Search(SearchMemory& memory, uint64_t* candidates, int64_t room, int32_t top_k,
                    int thread)
      : memory_(memory),
        candidates_(candidates),
        top_k_(static_cast<uint32_t>(top_k)),
        full_(static_cast<uint32_t>(room) - kMostOffers),
        thread_(thread) {}

  __device__ void Sync() const { SyncThreads<kThreads>(kBarrier); }
  // The same of the threads of kOfCtas.
  template <int kOfCtas = kCtas>
  __device__ void SyncAll() const {
    if constexpr (kOfCtas == 1) {
      Sync();
    } else {
      cooperative_groups::this_cluster().sync();
    }
  }

  // Begins anew. All threads are done with what was found before.
  __device__ void Begin() {
    if (thread_ == 0) memory_.count = 0;
    lowest_ = 0;
    is_full_ = false;
    Sync();
  }

  // All lanes of a warp call it. Between two calls of MakeRoom there are kMostOffers at most.
  __device__ void Offer(uint64_t rank, bool is_offered) {
    is_full_ |= Append(rank, is_offered && rank > lowest_) > full_;
  }
  // Several at once; no rank is 0.
  template <int kCount>
  __device__ void OfferAll(const uint64_t (&ranks)[kCount]) {
    uint32_t own = 0;
#pragma unroll
    for (const uint64_t rank : ranks) own += rank > lowest_ ? 1 : 0;
    uint32_t at = TakeRoom(own);
    is_full_ |= at + own > full_;
#pragma unroll
    for (const uint64_t rank : ranks) {
      if (rank > lowest_) candidates_[at++] = rank;
    }
  }
  // All threads call it: then there is room for the next offers.
  __device__ void MakeRoom() {
    if (!SyncThreadsAny<kThreads>(kBarrier, is_full_)) return;
    Prune();
  }

  // All have been offered, more than top_k: finds which are chosen, of those of all CTAs the top_k
  // highest.
  __device__ void Finish() {
    Sync();
    count_ = memory_.count;
    lowest_ = LowestChosen<kCtas>(0);
  }

  // The positions of what is chosen, ascending, to `chosen`, by the first CTA. All are below `end`.
  __device__ void WriteAscending(int32_t end, int32_t* chosen) {
    uint32_t* const words = Of<kCtas>(0, memory_.words);
    const bool is_first = words == memory_.words;
    uint32_t written = 0;
    for (int32_t first = 0; first < end; first += kWindow) {
      const int32_t num_words = (min(kWindow, end - first) + 31) / 32;
      if (is_first) {
        if (first > 0) Sync();  // the bits before are read
        for (int32_t w = thread_; w < num_words; w += kThreads) words[w] = 0;
      }
      SyncAll();
      ForEachCandidate([&](uint64_t rank) {
        const int32_t at = PositionOfRank(rank) - first;
        if (rank >= lowest_ && at >= 0 && at < kWindow) atomicOr(&words[at / 32], 1u << at % 32);
      });
      SyncAll();
      if (is_first) written += WriteWindow(first, num_words, chosen + written);
    }
  }
  // The first `count` positions, likewise.
  __device__ void WriteAll(int32_t count, int32_t* chosen) const {
    for (int32_t i = thread_; i < static_cast<int32_t>(top_k_); i += kThreads) {
      chosen[i] = i < count ? i : -1;
    }
  }
  // All have been offered: what may be chosen, as partial number `partial`. That is all of them, if a
  // partial has room for them.
  __device__ void WritePartial(const SelectScratch& scratch, int64_t partial) {
    const auto room = static_cast<uint32_t>(PartialRoom(static_cast<int32_t>(top_k_)));
    uint64_t* const to = scratch.partials.data() + partial * room;
    FenceForProducts();
    Sync();
    count_ = memory_.count;
    Sync();  // all have read it
    uint32_t num_kept = count_;
    if (count_ <= room && scratch.candidates.empty()) {
      if (thread_ == 0) StoreCandidates(to);
    } else {
      lowest_ = count_ > room ? LowestChosen<1>(room - top_k_) : 0;
      if (thread_ == 0) memory_.count = 0;
      Keep(to);
      Sync();
      num_kept = memory_.count;
      // What copies them takes two at a time.
      if (thread_ == 0 && num_kept % 2 == 1) to[num_kept] = 0;
    }
    if (thread_ == 0) {
      scratch.counts[static_cast<size_t>(partial)] = static_cast<int32_t>(num_kept);
    }
  }

  // Throws out most of what is not among the top_k. All threads see the candidates, and call it.
  __device__ void Prune() {
    count_ = memory_.count;
    is_full_ = false;
    lowest_ = LowestChosen<1>(kPruneSlack);
    if (thread_ == 0) memory_.count = 0;
    Keep(candidates_);
    Sync();
  }

 private:
  __device__ int Lane() const { return thread_ % kWarp; }

  // The same in the shared memory of a CTA, of kOfCtas that search together: all of the cluster, or one.
  template <int kOfCtas, class T>
  static __device__ T* Of(int cta, T* own) {
    if constexpr (kOfCtas == 1) {
      return own;
    } else {
      return cooperative_groups::this_cluster().map_shared_rank(own, static_cast<unsigned>(cta));
    }
  }

  // By the copy engine, two at a time.
  __device__ void StoreCandidates(uint64_t* to) {
    if (count_ % 2 == 1) {
      candidates_[count_] = 0;
      FenceForProducts();
    }
    StoreBytes(reinterpret_cast<std::byte*>(to), SharedAddress(candidates_), (count_ + 1) / 2 * 16);
    WaitForStores();
  }

  // A rank that top_k of the candidates are not below, and at most `slack` others; of the candidates of
  // all CTAs, or of this one's. It is found from its first bits on, a digit at a time. No two
  // candidates are equal.
  template <int kOfCtas>
  __device__ uint64_t LowestChosen(uint32_t slack) {
    int shift = 64 - kDigitBits, known_from = 64;  // bits of it from here on are known
    uint64_t known = 0;
    uint32_t wanted = top_k_;
    while (true) {
      CountDigits(known, known_from, shift);
      FindBin<kOfCtas>(wanted);
      known |= uint64_t{memory_.bin} << shift;
      wanted -= memory_.above;
      if (memory_.inside - wanted <= slack || shift == 0) return known;
      known_from = shift;
      shift = max(0, shift - kDigitBits);  // the last digit may overlap the one before
    }
  }

  // Calls run(rank) for this thread's candidates, of which several are on their way at once.
  template <class Run>
  __device__ void ForEachCandidate(Run run) const {
    constexpr uint32_t kEach = 8;
    const auto thread = static_cast<uint32_t>(thread_);
    for (uint32_t first = thread; first < count_; first += kEach * kThreads) {
      uint64_t ranks[kEach];
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        if (first + i * kThreads < count_) ranks[i] = candidates_[first + i * kThreads];
      }
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        if (first + i * kThreads < count_) run(ranks[i]);
      }
    }
  }

  // How many candidates that agree with the known bits, from known_from on, have each value of the digit
  // at `shift`. It takes as long as its instructions, so there are few for a candidate; the zeros that
  // fill up partials are counted too, and are below all ranks.
  __device__ void CountDigits(uint64_t known, int known_from, int shift) {
#pragma unroll 1
    for (int bin = 4 * thread_; bin < kBins; bin += 4 * kThreads) {
      *reinterpret_cast<uint4*>(memory_.words + bin) = {};
    }
    Sync();
    const uint64_t most = ~uint64_t{0} >> (64 - known_from);
    ForEachCandidate([&](uint64_t rank) {
      const uint64_t rest = rank - known;  // its bits behind the known ones, if it agrees
      if (rest <= most) atomicAdd(&memory_.words[static_cast<uint32_t>(rest >> shift)], 1u);
    });
    Sync();
  }

  // The bin that the wanted-th highest lies in; how many are above it, and how many inside.
  template <int kOfCtas>
  __device__ void FindBin(uint32_t wanted) {
#pragma unroll 1
    for (int chunk = thread_ / kWarp; chunk < kWarp; chunk += kWarps) {
      const uint32_t sum = __reduce_add_sync(kAllLanes, SumOf(FourBins(memory_.words, chunk)));
      if (Lane() == 0) memory_.sums[chunk] = sum;
    }
    SyncAll<kOfCtas>();
    if (thread_ < kWarp) {
      uint32_t chunk_sum = 0;
#pragma unroll
      for (int cta = 0; cta < kOfCtas; ++cta) {
        chunk_sum += Of<kOfCtas>(cta, memory_.sums)[kWarp - 1 - Lane()];
      }
      uint32_t above = 0;
      const int chunk = kWarp - 1 - FirstLaneWith(wanted, chunk_sum, above);
      uint4 bins = {};
#pragma unroll
      for (int cta = 0; cta < kOfCtas; ++cta) {
        const uint4 theirs = FourBins(Of<kOfCtas>(cta, memory_.words), chunk);
        bins.x += theirs.x, bins.y += theirs.y, bins.z += theirs.z, bins.w += theirs.w;
      }
      const int lane = FirstLaneWith(wanted, SumOf(bins), above);
      if (Lane() == lane) {
        // From the highest on.
        uint32_t inside = bins.w, below = 3;
        if (above + inside < wanted) above += inside, inside = bins.z, below = 2;
        if (above + inside < wanted) above += inside, inside = bins.y, below = 1;
        if (above + inside < wanted) above += inside, inside = bins.x, below = 0;
        memory_.bin = static_cast<uint32_t>(chunk * kChunkBins + 4 * (kWarp - 1 - lane)) + below;
        memory_.above = above;
        memory_.inside = inside;
      }
    }
    SyncAll<kOfCtas>();
  }
  // This lane's of a chunk: the first lane has the highest.
  __device__ uint4 FourBins(const uint32_t* words, int chunk) const {
    return reinterpret_cast<const uint4*>(words)[chunk * kWarp + kWarp - 1 - Lane()];
  }
  static __device__ uint32_t SumOf(const uint4& bins) { return bins.x + bins.y + bins.z + bins.w; }
  // The first lane up to which, with the `above` of before, the counts come to `wanted`; what is before
  // that lane is added to `above`.
  __device__ int FirstLaneWith(uint32_t wanted, uint32_t count, uint32_t& above) const {
    const uint32_t through = above + WarpSumThrough(count);
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, through >= wanted))) - 1;
    above = __shfl_sync(kAllLanes, through - count, lane);
    return lane;
  }

  // What lowest_ is not above, to `to`, in any order; memory_.count, 0 before, counts them. `to` may be
  // where the candidates lie: a thread writes where all have read.
  __device__ void Keep(uint64_t* to) {
    constexpr uint32_t kEach = 8;
    for (uint32_t first = 0; first < count_; first += kEach * kThreads) {
      uint64_t ranks[kEach];
      uint32_t own = 0;
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t at = first + i * kThreads + static_cast<uint32_t>(thread_);
        ranks[i] = at < count_ ? candidates_[at] : 0;
        own += ranks[i] >= lowest_ && at < count_ ? 1 : 0;
      }
      Sync();
      uint32_t at = TakeRoom(own);
#pragma unroll
      for (uint32_t i = 0; i < kEach; ++i) {
        const bool is_there = first + i * kThreads + static_cast<uint32_t>(thread_) < count_;
        if (ranks[i] >= lowest_ && is_there) to[at++] = ranks[i];
      }
    }
  }

  // All lanes of a warp call it. Returns where a lane's own are put.
  __device__ uint32_t TakeRoom(uint32_t own) {
    const uint32_t through = WarpSumThrough(own);
    uint32_t first = 0;
    if (Lane() == kWarp - 1) first = atomicAdd(&memory_.count, through);
    return __shfl_sync(kAllLanes, first, kWarp - 1) + through - own;
  }

  // All lanes of a warp call it. Returns how many candidates there are now at least.
  __device__ uint32_t Append(uint64_t rank, bool is_taken) {
    const unsigned lanes = __ballot_sync(kAllLanes, is_taken);
    if (lanes == 0) return 0;
    const auto num_taken = static_cast<uint32_t>(__popc(lanes));
    uint32_t first = 0;
    if (Lane() == 0) first = atomicAdd(&memory_.count, num_taken);
    first = __shfl_sync(kAllLanes, first, 0);
    const auto before = static_cast<uint32_t>(__popc(lanes & ((1u << Lane()) - 1)));
    if (is_taken) candidates_[first + before] = rank;
    return first + num_taken;
  }

  // The sum of the values of threads before this one; of all of them in total_.
  __device__ uint32_t SumBefore(uint32_t value) {
    const uint32_t through = WarpSumThrough(value);
    Sync();  // nobody reads the sums before
    if (Lane() == kWarp - 1) memory_.sums[thread_ / kWarp] = through;
    Sync();
    const uint32_t warps = WarpSumThrough(Lane() < kWarps ? memory_.sums[Lane()] : 0);
    total_ = __shfl_sync(kAllLanes, warps, kWarp - 1);
    const uint32_t before = __shfl_sync(kAllLanes, warps, max(0, thread_ / kWarp - 1));
    return through - value + (thread_ < kWarp ? 0 : before);
  }

  // The positions of a window's bits; returns how many there are.
  __device__ uint32_t WriteWindow(int32_t first, int32_t num_words, int32_t* to) {
    // Of a short window a thread has a byte, so that all have some.
    if (num_words <= kThreads / 4) {
      return WriteBits(reinterpret_cast<const uint8_t*>(memory_.words), 4 * num_words, first, to);
    }
    return WriteBits(memory_.words, num_words, first, to);
  }
  template <class Bits>
  __device__ uint32_t WriteBits(const Bits* words, int32_t num_words, int32_t first, int32_t* to) {
    constexpr int32_t kEach = 8 * sizeof(Bits);
    const int32_t each = (num_words + kThreads - 1) / kThreads;
    const int32_t begin = min(thread_ * each, num_words), end = min(begin + each, num_words);
    uint32_t own = 0;
    for (int32_t w = begin; w < end; ++w) own += static_cast<uint32_t>(__popc(words[w]));
    uint32_t at = SumBefore(own);
    for (int32_t w = begin; w < end; ++w) {
      for (uint32_t bits = words[w]; bits != 0; bits &= bits - 1) {
        to[at++] = first + w * kEach + __ffs(static_cast<int>(bits)) - 1;
      }
    }
    return total_;
  }

  SearchMemory& memory_;
  uint64_t* const candidates_;
  const uint32_t top_k_;
  const uint32_t full_;
  const int thread_;
  uint64_t lowest_ = 0;  // what is below it is not chosen; no rank is 0
  uint32_t count_ = 0;   // candidates at the last look
  uint32_t total_ = 0;
  bool is_full_ = false;
};

// The rank of a key: forced at a row's ends, by its score otherwise.
__device__ inline uint64_t RankOfKey(const IndexShape& shape, float score, int32_t position,
                                     int32_t visible) {
  const bool is_forced = position < shape.init_tokens || position >= visible - shape.local_tokens;
  return is_forced ? RankOfForced(position) : RankOf(score, position);
}

// What becomes of a query's piece, once all of its keys were offered.
template <class Search>
__device__ void EndPiece(const SelectKernelArgs& args, const Piece& piece, int32_t visible,
                         Search& search) {
  if (piece.first == 0 && piece.last == piece.num_splits) {
    search.Finish();
    search.WriteAscending(visible, args.chosen + piece.tile.q_begin.raw() * args.shape.top_k);
  } else if (piece.partial < static_cast<int64_t>(args.scratch.counts.size())) {
    search.WritePartial(args.scratch, piece.partial);
  } else if (threadIdx.x == 0) {
    Report(args.status, DeviceFault::kCapacity, Launch::kSelectKeys,
           static_cast<uint32_t>(piece.partial));
  }
  search.Sync();  // candidates are read
}

// Keys [begin, end) of the piece's query.
struct KeyRange {
  int32_t begin, end;

  static __device__ KeyRange Of(const Piece& piece) {
    const auto kv_end = static_cast<int32_t>(piece.tile.kv_end.raw());
    return {piece.first * kTileKeys, min(piece.last * kTileKeys, kv_end)};
  }
};

// The row position of the p-th key that a tile's query sees.
__device__ inline int32_t PositionOf(const Plan& plan, const QueryTile& tile, int32_t p) {
  return static_cast<int32_t>(plan.KeyPosition(tile.seq, tile.q_begin, TokenCount(p)).raw());
}

// Calls run(piece) for pieces whose queries are there.
template <class Run>
__device__ void ForEachQuery(const SelectKernelArgs& args, int32_t worker, Run run) {
  ForEachPiece(args.plan, worker, [&](const Piece& piece) {
    if (piece.tile.q_begin.raw() < args.num_tokens) run(piece);
  });
}

// A query's keys, all of which it gets if they are top_k or fewer: then the tile reads none.
__device__ inline bool ReadsNone(const Piece& piece) { return piece.tile.kv_end == TokenCount(0); }
__device__ inline int32_t VisibleTo(const Plan& plan, const QueryTile& tile) {
  return static_cast<int32_t>(plan.Visible(tile.seq, tile.q_begin).raw());
}

// Where a CTA's candidates lie.
__device__ inline uint64_t* CandidatesOf(const SelectKernelArgs& args, int32_t cta,
                                         uint64_t* shared) {
  if (args.scratch.candidates.empty()) return shared;
  return args.scratch.candidates.data() + cta * CandidateRoom(args.shape.top_k);
}
inline size_t SharedCandidateBytes(const SelectKeysArgs& args) {
  if (!CandidatesAreShared(args.shape.top_k)) return 0;
  return sizeof(uint64_t) * static_cast<size_t>(CandidateRoom(args.shape.top_k));
}

}  // namespace quire::cuda::select

#endif  // QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_SEARCH_CUH_
