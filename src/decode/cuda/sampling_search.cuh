// Finding the candidate at which a running count, or a running weight, reaches a target: by the CTAs of
// a cluster, or by one alone, in the order of candidates, without sorting the row.
//
// Every CTA has a slice of the row. Keys are narrowed down: a pass puts those of a range of keys into 32
// bins and adds up every bin's count and weight; the bin in which the target is reached is the next
// range, until it has few tokens. These are listed and sorted. Every thread has bins of its own, and sums
// are integers: no atomics, and no order that could change a bit.
//
// CTAs only store to each other's shared memory, and all know, find and sort the same. The first writes
// what comes of it.
#ifndef QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_
#define QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_

#include <cooperative_groups.h>

#include <cstddef>
#include <cstdint>

#include "decode/cuda/sampling_math.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace quire::cuda {

inline constexpr int kSearchThreads = 512;
inline constexpr int kSearchWarps = kSearchThreads / kWarp;
inline constexpr int kSearchBins = kWarp;  // a lane for each
inline constexpr int kListSize = 2 * kSearchThreads;
// Tokens that are narrowed down no further. Beside them the list has room for all before them, if these are
// fewer than alternatives can be.
inline constexpr uint32_t kFewTokens = kListSize - kMaxTopLogprobs;

// A thread's bin: its number of keys above kBinWeightBits bits of weight. A thread sees 513 of
// kMaxSampledVocab tokens at most, so both fit: 513 < 2^10, 513 * 2^kWeightBits < 2^54.
inline constexpr int kBinWeightBits = 54;
inline constexpr uint64_t kOneKey = uint64_t{1} << kBinWeightBits;
static_assert(kMaxSampledVocab / kSearchThreads + 1 < 1 << (64 - kBinWeightBits));
static_assert((kMaxSampledVocab / kSearchThreads + 1) << kWeightBits < int64_t{1}
                                                                           << kBinWeightBits);

// What every CTA of a cluster tells all.
struct Told {
  uint64_t weight[kMostSearchCtas][kSearchBins];
  uint32_t count[kMostSearchCtas][kSearchBins];
};
struct SearchStorage {
  uint64_t bins[kSearchBins][kSearchThreads];
  Told told[2];  // in turn: of the last pass it may still be read
  uint64_t list[kListSize];
  uint64_t scratch[kSearchWarps];
  uint64_t found_weight;
  uint32_t found;
  uint32_t num_listed;  // by this CTA
  uint32_t warp_ties[kSearchWarps];
};
// The slice follows where it is held.
static_assert(sizeof(SearchStorage) % sizeof(float) == 0);
static_assert(sizeof(SearchStorage) + kMostHeldLogits * sizeof(float) <= 232448, "227 KiB a CTA");

__device__ inline int ThreadId() { return static_cast<int>(threadIdx.x); }

// Functions that are called in several places are not inlined: the kernel runs once in a step, and its code comes
// from memory. What they take and return fits registers.

// The CTAs that search for an item. All their threads call the same, in the same order.
class Team {
 public:
  __device__ Team(uint32_t rank, uint32_t num_ctas, SearchStorage& storage)
      : s(storage), rank_(rank), num_ctas_(num_ctas) {}

  __device__ uint32_t rank() const { return rank_; }
  __device__ uint32_t num_ctas() const { return num_ctas_; }

  // Nobody stores to a CTA that may not have begun: Arrive, and Begin before the first store.
  __device__ void Arrive() const {
    if (num_ctas_ > 1) ArriveAtCluster();
  }
  __device__ void Begin() const {
    if (num_ctas_ > 1) WaitForCluster();
  }
  // What one stored before, here or there, all see behind it.
  __device__ void Sync() const {
    if (num_ctas_ > 1) {
      SyncCluster();
    } else {
      __syncthreads();
    }
  }
  // The same place, which is in the storage, of CTA `rank`.
  template <class T>
  __device__ T& At(uint32_t rank, T& place) const {
    return num_ctas_ > 1 ? *cooperative_groups::this_cluster().map_shared_rank(&place, rank)
                         : place;
  }
  // Where to tell; Next() comes first: what was told before the last Sync is read no more.
  __device__ const Team& Next() {
    turn_ ^= 1;
    return *this;
  }
  __device__ Told& told() const { return s.told[turn_]; }
  // Before a list is made: the last, if there was one, is read no more.
  __device__ void BeginList() {
    if (ThreadId() == 0) s.num_listed = 0;
    if (has_list_) {
      Sync();
    } else {
      __syncthreads();
    }
    has_list_ = true;
  }

  SearchStorage& s;  // this CTA's

 private:
  const uint32_t rank_, num_ctas_;
  uint32_t turn_ = 0;
  bool has_list_ = false;
};

// A CTA's tokens of a row: [first, first + size). Slices are in the order of ranks.
struct RowSlice {
  const float*
      values;  // plain loads: of device memory or shared memory, and this kernel may have written them
  int32_t first;
  int32_t size;  // may be 0
};

// fn(i, value) for this thread's tokens, number i of the slice: loads first, so that eight are under way at
// once.
template <class Fn>
__device__ void ForTokens(const RowSlice& row, Fn fn) {
  constexpr int kAtOnce = 8;
  for (int begin = ThreadId(); begin < row.size; begin += kAtOnce * kSearchThreads) {
    float values[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * kSearchThreads;
      values[j] = i < row.size ? row.values[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = begin + j * kSearchThreads;
      if (i < row.size) fn(i, values[j]);
    }
  }
}

// Begins to copy a slice; there, once this thread has waited for its copies and the CTA for all threads.
__device__ inline void BeginCopy(const RowSlice& from, float* to) {
  for (int i = ThreadId(); i < from.size; i += kSearchThreads) {
    CopyAsync4(SharedAddress(to + i), reinterpret_cast<const std::byte*>(from.values + i), 4);
  }
  CommitCopies();
}

// op over all threads' values, the same in all of them.
template <class Op>
__device__ uint64_t OverTeam(Team& team, uint64_t value, Op op) {
  SearchStorage& s = team.s;
#pragma unroll
  for (int half = kWarp / 2; half >= 1; half /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, half));
  }
  __syncthreads();  // the scratch has been read by all that used it before
  if (ThreadId() % kWarp == 0) s.scratch[ThreadId() / kWarp] = value;
  __syncthreads();  // every warp's value is there before any thread reads them
  value = s.scratch[0];
  for (int w = 1; w < kSearchWarps; ++w) value = op(value, s.scratch[w]);
  if (team.num_ctas() == 1) return value;
  Told& told = team.Next().told();
  const auto to = static_cast<uint32_t>(ThreadId());
  if (to < team.num_ctas()) team.At(to, told.weight[team.rank()][0]) = value;
  team.Sync();
  value = told.weight[0][0];
  for (uint32_t r = 1; r < team.num_ctas(); ++r) value = op(value, told.weight[r][0]);
  return value;
}
__device__ inline uint64_t SumOverTeam(Team& team, uint64_t value) {
  return OverTeam(team, value, [](uint64_t a, uint64_t b) { return a + b; });
}
__device__ inline uint64_t LeastOverTeam(Team& team, uint64_t value) {
  return OverTeam(team, value, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
}

// The sum of the values of all lanes up to this one.
template <class T>
__device__ T SumThrough(T value) {
  const int lane = ThreadId() % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T other = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

struct KeyRange {
  uint32_t low, high;  // both in it
  int shift;           // a bin has 2^shift keys, the last all that are left

  __device__ bool Has(uint32_t key) const { return key >= low && key <= high; }
  __device__ uint32_t BinOf(uint32_t key) const {
    const uint32_t bin = (key - low) >> shift;
    return bin < kSearchBins ? bin : kSearchBins - 1;
  }
  // 32 bins of one size have all of the range.
  __device__ static KeyRange Even(uint32_t low, uint32_t high) {
    const uint32_t span = high - low;
    return {.low = low,
            .high = high,
            .shift = span < kSearchBins ? 0 : kWarp - __clz(static_cast<int>(span)) - 5};
  }
  // Of a row whose least key is `low`. What is drawn is near to that: an octave of logits has eight bins, and
  // what lies four octaves behind one.
  __device__ static KeyRange First(uint32_t low) {
    return {.low = low, .high = kLastKey, .shift = 20};
  }
  // A bin that has keys.
  __device__ KeyRange Bin(uint32_t bin) const {
    const uint32_t first = low + (bin << shift);
    const uint32_t more = (1u << shift) - 1;
    return Even(first, bin == kSearchBins - 1 || high - first < more ? high : first + more);
  }
};

// Of a bin of all CTAs: lane b has bin b, in every warp.
struct BinSums {
  uint64_t weight;
  uint32_t count;
  uint32_t lower;  // of these, of CTAs of lower rank than this one's
};

// Counts and weighs the keys of a range, by bins. Takes team.Next().
template <class Weigh>
__noinline__ __device__ BinSums FillBins(const Team team, const RowSlice row, const KeyRange range,
                                         const Weigh weigh) {
  SearchStorage& s = team.s;
  for (int b = 0; b < kSearchBins; ++b) s.bins[b][ThreadId()] = 0;  // this thread's own
  ForTokens(row, [&](int, float value) {
    const uint32_t key = KeyOf(value);
    if (range.Has(key)) s.bins[range.BinOf(key)][ThreadId()] += kOneKey + weigh(ValueOf(key));
  });
  __syncthreads();  // all bins of the CTA are full
  Told& told = team.told();
  const int warp = ThreadId() / kWarp;
  const int lane = ThreadId() % kWarp;
  for (int b = warp; b < kSearchBins; b += kSearchWarps) {
    uint64_t weight = 0;
    uint32_t count = 0;
    for (int i = lane; i < kSearchThreads; i += kWarp) {
      weight += s.bins[b][i] & (kOneKey - 1);
      count += static_cast<uint32_t>(s.bins[b][i] >> kBinWeightBits);
    }
#pragma unroll
    for (int half = kWarp / 2; half >= 1; half /= 2) {
      weight += __shfl_xor_sync(kAllLanes, weight, half);
      count += __shfl_xor_sync(kAllLanes, count, half);
    }
    const auto to = static_cast<uint32_t>(lane);
    if (to < team.num_ctas()) {
      team.At(to, told.weight[team.rank()][b]) = weight;
      team.At(to, told.count[team.rank()][b]) = count;
    }
  }
  team.Sync();  // every CTA's sums are there before any thread reads them; and the bins were read
  BinSums sums = {};
  for (uint32_t r = 0; r < team.num_ctas(); ++r) {
    if (r == team.rank()) sums.lower = sums.count;
    sums.count += told.count[r][lane];
    sums.weight += told.weight[r][lane];
  }
  return sums;
}
template <class Weigh>
__device__ BinSums FillFirstBins(Team& team, const RowSlice& row, uint32_t first_key,
                                 const Weigh& weigh) {
  return FillBins(team.Next(), row, KeyRange::First(first_key), weigh);
}

// The keys among which a target is reached: few tokens, or one key that many tokens have.
struct Place {
  KeyRange range;
  uint32_t count;          // of tokens that have these keys
  uint32_t lower;          // of these, of CTAs of lower rank
  uint32_t before;         // tokens with keys below them
  uint32_t lower_before;   // of these, of CTAs of lower rank
  uint64_t weight_before;  // of the tokens before
  uint64_t weight;         // of those and these

  __device__ bool IsFew() const { return count <= kFewTokens; }
};

enum class Reach { kCount, kWeight };

// `target` is 1 or more, and no more than the row has. `first_key` is the least key in the row, and
// `sums` are of its first bins.
template <class Weigh>
__device__ Place Narrow(Team& team, const RowSlice& row, uint32_t first_key, BinSums sums,
                        Reach reach, uint64_t target, const Weigh& weigh) {
  KeyRange range = KeyRange::First(first_key);
  Place place = {};
  while (true) {
    const uint64_t weight = place.weight_before + SumThrough(sums.weight);
    const uint32_t count = place.before + SumThrough(sums.count);
    const uint32_t lower = place.lower_before + SumThrough(sums.lower);
    const bool is_reached = (reach == Reach::kCount ? uint64_t{count} : weight) >= target;
    const unsigned reached = __ballot_sync(kAllLanes, is_reached);
    const int bin = reached == 0 ? kSearchBins - 1 : __ffs(static_cast<int>(reached)) - 1;
    place.count = __shfl_sync(kAllLanes, sums.count, bin);
    place.lower = __shfl_sync(kAllLanes, sums.lower, bin);
    place.before = __shfl_sync(kAllLanes, count - sums.count, bin);
    place.lower_before = __shfl_sync(kAllLanes, lower - sums.lower, bin);
    place.weight_before = __shfl_sync(kAllLanes, weight - sums.weight, bin);
    place.weight = __shfl_sync(kAllLanes, weight, bin);
    place.range = range.Bin(static_cast<uint32_t>(bin));
    if (place.IsFew() || place.range.low == place.range.high) return place;
    range = place.range;
    sums = FillBins(team.Next(), row, range, weigh);
  }
}

// A candidate: its key, then its token, so that numbers are in the order of candidates.
__device__ inline uint64_t CandidateOf(uint32_t key, int32_t token) {
  return uint64_t{key} << 32 | static_cast<uint32_t>(token);
}
__device__ inline uint32_t KeyOfCandidate(uint64_t candidate) {
  return static_cast<uint32_t>(candidate >> 32);
}
__device__ inline int32_t TokenOfCandidate(uint64_t candidate) {
  return static_cast<int32_t>(candidate & 0xffffffffu);
}

// List and FindTies come behind team.BeginList().
__device__ inline void StoreInLists(const Team& team, uint32_t at, uint64_t candidate) {
  if (at >= kListSize) return;
#pragma unroll 1
  for (uint32_t r = 0; r < team.num_ctas(); ++r) team.At(r, team.s.list[at]) = candidate;
}
// The candidates with keys low..high to all lists, those of CTAs of lower rank, which are `lower`, first;
// otherwise in any order.
__noinline__ __device__ static void List(const Team team, const RowSlice row, uint32_t low,
                                         uint32_t high, uint32_t lower) {
  ForTokens(row, [&](int i, float value) {
    const uint32_t key = KeyOf(value);
    if (key < low || key > high) return;
    const uint32_t at = lower + atomicAdd(&team.s.num_listed, 1u);
    StoreInLists(team, at, CandidateOf(key, row.first + i));
  });
}

// The candidates that are number first + j, from 0, of those with `key`, to place `at` + j of all lists;
// for j < num. CTAs of lower rank have `lower` of them.
__noinline__ __device__ static void FindTies(const Team team, const RowSlice row, uint32_t key,
                                             uint32_t lower, uint32_t first, uint32_t num,
                                             uint32_t at) {
  SearchStorage& s = team.s;
  const int warp = ThreadId() / kWarp;
  const int lane = ThreadId() % kWarp;
  // A run of tokens for each warp: whole 32s, so that a warp's lanes stay together.
  const int run = ((row.size + kSearchWarps - 1) / kSearchWarps + kWarp - 1) / kWarp * kWarp;
  const int begin = warp * run;
  const int end = begin + run < row.size ? begin + run : row.size;
  const auto ties_at = [&](int i) {
    return __ballot_sync(kAllLanes, i + lane < end && KeyOf(row.values[i + lane]) == key);
  };
  uint32_t ties = 0;
#pragma unroll 8
  for (int i = begin; i < end; i += kWarp) ties += __popc(ties_at(i));
  if (lane == 0) s.warp_ties[warp] = ties;
  __syncthreads();  // every warp's number is there before any adds up those before it
  uint32_t rank = lower;
  for (int w = 0; w < warp; ++w) rank += s.warp_ties[w];
  for (int i = begin; i < end && rank < first + num; i += kWarp) {
    const unsigned found = ties_at(i);
    const uint32_t mine = rank + __popc(found & ((1u << lane) - 1));
    if ((found >> lane & 1) != 0 && mine >= first && mine < first + num) {
      StoreInLists(team, at + mine - first, CandidateOf(key, row.first + i + lane));
    }
    rank += __popc(found);
  }
}

// Sorts the list, which has `size`, behind Sync. Every CTA has all of it and sorts for itself.
__noinline__ __device__ static void SortList(uint32_t size, SearchStorage& s) {
  const auto thread = static_cast<uint32_t>(ThreadId());
  uint32_t padded = 2;
  while (padded < size) padded *= 2;
  for (uint32_t i = size + thread; i < padded; i += kSearchThreads) s.list[i] = ~uint64_t{0};
  __syncthreads();
  // Bitonic: runs of `run`, up and down in turn. A thread has a pair of each step; of pairs less than 64
  // apart all of a warp are of the 64 that are its own.
  for (uint32_t run = 2; run <= padded; run *= 2) {
    for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
      if (thread < padded / 2) {
        const uint32_t i = 2 * thread - (thread & (apart - 1));
        const uint64_t a = s.list[i], b = s.list[i + apart];
        if ((a > b) == ((i & run) == 0)) s.list[i] = b, s.list[i + apart] = a;
      }
      const uint32_t next = apart > 1 ? apart / 2 : run;
      if (apart > kWarp || next > kWarp) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// The first candidates that reach a target.
struct Cut {
  uint64_t count;
  uint64_t weight;     // of all of them
  uint64_t candidate;  // the last
};

// Of the sorted list, which has `size`: number `target`, or where the running weight reaches it.
__noinline__ __device__ static Cut CutList(uint32_t size, Reach reach, uint64_t target,
                                           const Weigher weigh, SearchStorage& s) {
  static_assert(kListSize == 2 * kSearchThreads);
  const uint32_t first = 2 * static_cast<uint32_t>(ThreadId());
  const auto weight_at = [&](uint32_t i) {
    return i < size ? weigh(ValueOf(KeyOfCandidate(s.list[i]))) : 0;
  };
  const uint64_t own[2] = {weight_at(first), weight_at(first + 1)};
  uint64_t through = SumThrough(own[0] + own[1]);
  __syncthreads();  // the scratch has been read by all that used it before
  if (ThreadId() % kWarp == kWarp - 1) s.scratch[ThreadId() / kWarp] = through;
  __syncthreads();  // every warp's sum is there before any adds up those before it
  for (int w = 0; w < ThreadId() / kWarp; ++w) through += s.scratch[w];
  uint64_t before = through - own[0] - own[1];
#pragma unroll
  for (uint32_t j = 0; j < 2; ++j) {
    const uint64_t reached = before + own[j];
    const bool is_it =
        reach == Reach::kCount ? first + j + 1 == target : before < target && reached >= target;
    if (is_it) s.found = first + j, s.found_weight = reached;
    before = reached;
  }
  __syncthreads();  // it is found
  return {.count = s.found + 1, .weight = s.found_weight, .candidate = s.list[s.found]};
}

// The row's first candidates that the list has by now, sorted: a search that ends among them needs no more.
struct Sorted {
  uint32_t size = 0;
  uint64_t weight = 0;  // of all of them

  __device__ bool Has(Reach reach, uint64_t target) const {
    return target <= (reach == Reach::kCount ? uint64_t{size} : weight);
  }
};
enum class Listing {
  kFirst,  // all candidates up to the bin that is found, if there is room: for searches to come
  kFew,    // those of the bin
};

// As Narrow. All threads get the same.
__device__ inline Cut Search(Team& team, const RowSlice& row, uint32_t first_key,
                             const BinSums& first_sums, Reach reach, uint64_t target,
                             const Weigher& weigh, Listing listing, Sorted& sorted) {
  if (sorted.Has(reach, target)) return CutList(sorted.size, reach, target, weigh, team.s);
  sorted = {};
  Place place = Narrow(team, row, first_key, first_sums, reach, target, weigh);
  team.BeginList();
  Cut cut;
  if (place.IsFew()) {
    uint32_t low = place.range.low;
    if (listing == Listing::kFirst && place.before + place.count <= kListSize) {
      sorted = {.size = place.before + place.count, .weight = place.weight};
      low = first_key;
      place.count = sorted.size;
      place.lower += place.lower_before;
      place.before = 0;
      place.weight_before = 0;
    }
    List(team, row, low, place.range.high, place.lower);
    team.Sync();  // the list is whole
    SortList(place.count, team.s);
    const uint64_t left = target - (reach == Reach::kCount ? place.before : place.weight_before);
    cut = CutList(place.count, reach, left, weigh, team.s);
  } else {
    const uint64_t each = weigh(ValueOf(place.range.low));
    uint64_t taken = 1;
    if (reach == Reach::kCount) {
      taken = target - place.before;
    } else if (each > 0) {
      taken = (target - place.weight_before + each - 1) / each;
    }
    taken = taken < place.count ? taken : place.count;
    FindTies(team, row, place.range.low, place.lower, static_cast<uint32_t>(taken) - 1, 1, 0);
    team.Sync();  // it is found
    cut = {.count = taken, .weight = taken * each, .candidate = team.s.list[0]};
  }
  cut.count += place.before;
  cut.weight += place.weight_before;
  return cut;
}

// The first `num` candidates, kMaxTopLogprobs at most, to the list, in their order.
__device__ inline void ListFirst(Team& team, const RowSlice& row, uint32_t first_key,
                                 uint32_t num) {
  const BinSums first_sums = FillFirstBins(team, row, first_key, NoWeight());
  const Place place =
      Narrow(team, row, first_key, first_sums, Reach::kCount, uint64_t{num}, NoWeight());
  team.BeginList();
  uint32_t size = num;
  if (place.IsFew()) {
    size = place.before + place.count;
    List(team, row, first_key, place.range.high, place.lower_before + place.lower);
  } else {
    List(team, row, first_key, place.range.low - 1, place.lower_before);
    FindTies(team, row, place.range.low, place.lower, 0, num - place.before, place.before);
  }
  team.Sync();  // the list is whole
  SortList(size, team.s);
}

}  // namespace quire::cuda

#endif  // QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_
