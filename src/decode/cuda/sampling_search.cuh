// Finding the candidate at which a running count, or a running weight, reaches a target: by one CTA,
// in the order of candidates, without sorting.
//
// Keys are narrowed down. A pass over the row puts those of a range of keys into 32 bins and adds up
// every bin's count and weight; the bin in which the target is reached is the next range, until it is
// one key. Once few are left their keys move to shared memory. Every thread has bins of its own, and
// sums are integers: no atomics, and no order that could change a bit.
#ifndef QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_
#define QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_

#include <cstdint>

#include "decode/cuda/sampling_math.cuh"

namespace quire::cuda {

inline constexpr int kSearchThreads = 512;
inline constexpr int kSearchWarps = kSearchThreads / 32;
inline constexpr int kSearchBins = 32;
inline constexpr uint32_t kListSize = 4096;
inline constexpr unsigned kAllLanes = ~0u;

// A thread's bin: its number of keys above kBinWeightBits bits of weight. A thread sees 513 of
// kMaxSampledVocab tokens at most, so both fit: 513 < 2^10, 513 * 2^kWeightBits < 2^54.
inline constexpr int kBinWeightBits = 54;
inline constexpr uint64_t kOneKey = uint64_t{1} << kBinWeightBits;
static_assert(kMaxSampledVocab / kSearchThreads + 1 < 1 << (64 - kBinWeightBits));
static_assert((kMaxSampledVocab / kSearchThreads + 1) << kWeightBits < int64_t{1}
                                                                           << kBinWeightBits);

struct SearchStorage {
  uint64_t bins[kSearchBins][kSearchThreads];
  uint64_t bin_weight[kSearchBins];
  uint64_t scratch[kSearchWarps];
  uint32_t bin_count[kSearchBins];
  uint32_t list[kListSize];
  uint32_t list_size;
  uint32_t warp_ties[kSearchWarps];
  uint32_t top_key[kMaxTopLogprobs];
  int32_t top_token[kMaxTopLogprobs];
  uint32_t num_top;
  int32_t token;
};

struct RowValues {
  const float* values;  // plain loads: adjusted rows are written by this kernel
  int32_t size;
};

__device__ inline int ThreadId() { return static_cast<int>(threadIdx.x); }

// fn(token, value) for this thread's tokens: loads first, so that eight are under way at once.
template <class Fn>
__device__ void ForTokens(const RowValues& row, Fn fn) {
  constexpr int kAtOnce = 8;
  for (int begin = ThreadId(); begin < row.size; begin += kAtOnce * kSearchThreads) {
    float values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = begin + i * kSearchThreads;
      values[i] = token < row.size ? row.values[token] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = begin + i * kSearchThreads;
      if (token < row.size) fn(token, values[i]);
    }
  }
}

// op over all threads' values, the same in all of them. All call it.
template <class Op>
__device__ uint64_t OverThreads(uint64_t value, uint64_t (&scratch)[kSearchWarps], Op op) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, half));
  }
  __syncthreads();  // the scratch has been read by all that used it before
  if (ThreadId() % 32 == 0) scratch[ThreadId() / 32] = value;
  __syncthreads();  // every warp's value is there before any thread reads them
  value = scratch[0];
  for (int w = 1; w < kSearchWarps; ++w) value = op(value, scratch[w]);
  return value;
}
__device__ inline uint64_t SumOverThreads(uint64_t value, SearchStorage& s) {
  return OverThreads(value, s.scratch, [](uint64_t a, uint64_t b) { return a + b; });
}
__device__ inline uint64_t LeastOverThreads(uint64_t value, SearchStorage& s) {
  return OverThreads(value, s.scratch, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
}

struct KeyRange {
  uint32_t low, high;  // both in it

  __device__ bool Has(uint32_t key) const { return key >= low && key <= high; }
  // A bin has 2^Shift() keys, and 32 bins have all of the range.
  __device__ int Shift() const {
    const uint32_t span = high - low;
    return span < kSearchBins ? 0 : 32 - __clz(static_cast<int>(span)) - 5;
  }
  __device__ KeyRange Bin(int bin) const {
    const int shift = Shift();
    const uint32_t first = low + (static_cast<uint32_t>(bin) << shift);
    const uint32_t more = (1u << shift) - 1;
    return {.low = first, .high = high - first < more ? high : first + more};
  }
};

// Counts and weighs the keys of a range, by bins, into s.bin_count and s.bin_weight.
template <class Weigh>
__device__ void FillBins(const RowValues& row, bool listed, KeyRange range, const Weigh& weigh,
                         SearchStorage& s) {
  for (int b = 0; b < kSearchBins; ++b) s.bins[b][ThreadId()] = 0;  // this thread's own
  const int shift = range.Shift();
  const auto add = [&](uint32_t key) {
    if (!range.Has(key)) return;
    s.bins[(key - range.low) >> shift][ThreadId()] += kOneKey + weigh(ValueOf(key));
  };
  if (listed) {
    const int size = static_cast<int>(s.list_size);
    for (int i = ThreadId(); i < size; i += kSearchThreads) add(s.list[i]);
  } else {
    ForTokens(row, [&](int, float value) { add(KeyOf(value)); });
  }
  __syncthreads();  // all bins are full; and all have read the last sums
  const int warp = ThreadId() / 32;
  const int lane = ThreadId() % 32;
  for (int b = warp; b < kSearchBins; b += kSearchWarps) {
    uint64_t weight = 0;
    uint32_t count = 0;
    for (int i = lane; i < kSearchThreads; i += 32) {
      weight += s.bins[b][i] & (kOneKey - 1);
      count += static_cast<uint32_t>(s.bins[b][i] >> kBinWeightBits);
    }
#pragma unroll
    for (int half = 16; half >= 1; half /= 2) {
      weight += __shfl_xor_sync(kAllLanes, weight, half);
      count += __shfl_xor_sync(kAllLanes, count, half);
    }
    if (lane == 0) s.bin_weight[b] = weight, s.bin_count[b] = count;
  }
  __syncthreads();  // the sums are there before any thread reads them
}

// Moves the keys of a range to the list. There are kListSize at most.
__device__ inline void ListKeys(const RowValues& row, KeyRange range, SearchStorage& s) {
  __syncthreads();  // nobody reads the sums or the last list any more
  if (ThreadId() == 0) s.list_size = 0;
  __syncthreads();
  ForTokens(row, [&](int, float value) {
    const uint32_t key = KeyOf(value);
    if (!range.Has(key)) return;
    // In any order: the list is counted and summed, not read in order.
    const uint32_t at = atomicAdd(&s.list_size, 1u);
    if (at < kListSize) s.list[at] = key;
  });
  __syncthreads();
}

// The first candidates that reach a target: all whose key is less than `key`, and the first `taken`
// tokens that have it.
struct Cut {
  uint32_t key;
  uint32_t taken;   // 1 or more
  uint32_t before;  // candidates with less than `key`
  uint64_t weight;  // of all of the cut

  __device__ uint32_t Count() const { return before + taken; }
};

enum class Reach { kCount, kWeight };

// `target` is 1 or more, and no more than the row has. `first_key` is the least key in the row. All
// threads call it and get the same.
template <Reach kReach, class Weigh>
__device__ Cut Search(const RowValues& row, uint32_t first_key, uint64_t target, const Weigh& weigh,
                      SearchStorage& s) {
  KeyRange range = {.low = first_key, .high = kLastKey};
  uint32_t count = 0;  // of the keys below the range
  uint64_t weight = 0;
  bool listed = false;
  while (true) {
    const bool last = range.Shift() == 0;
    FillBins(row, listed, range, weigh, s);
    int bin = 0;
    for (; bin < kSearchBins - 1; ++bin) {
      const uint64_t reached =
          kReach == Reach::kCount ? count + s.bin_count[bin] : weight + s.bin_weight[bin];
      if (reached >= target) break;
      count += s.bin_count[bin];
      weight += s.bin_weight[bin];
    }
    const uint32_t in_bin = s.bin_count[bin];
    range = range.Bin(bin);
    if (last) {
      const uint64_t each = weigh(ValueOf(range.low));
      uint64_t taken = 1;
      if constexpr (kReach == Reach::kCount) {
        taken = target - count;
      } else if (each > 0) {
        taken = (target - weight + each - 1) / each;
      }
      taken = taken < in_bin ? taken : in_bin;
      return {.key = range.low,
              .taken = static_cast<uint32_t>(taken),
              .before = count,
              .weight = weight + taken * each};
    }
    if (!listed && in_bin <= kListSize) {
      ListKeys(row, range, s);
      listed = true;
    }
  }
}

// to[i] = the token that is number first + i, from 0, of those with `key`, in their order; for
// i < num. All threads call it; `to` may be read when it returns.
__device__ inline void FindTies(const RowValues& row, uint32_t key, uint32_t first, uint32_t num,
                                int32_t* to, SearchStorage& s) {
  const int warp = ThreadId() / 32;
  const int lane = ThreadId() % 32;
  // A run of tokens for each warp: whole 32s, so that a warp's lanes stay together.
  const int run = ((row.size + kSearchWarps - 1) / kSearchWarps + 31) / 32 * 32;
  const int begin = warp * run;
  const int end = begin + run < row.size ? begin + run : row.size;
  const auto ties_at = [&](int at) {
    const int token = at + lane;
    return __ballot_sync(kAllLanes, token < end && KeyOf(row.values[token]) == key);
  };
  uint32_t ties = 0;
#pragma unroll 8
  for (int at = begin; at < end; at += 32) ties += __popc(ties_at(at));
  if (lane == 0) s.warp_ties[warp] = ties;
  __syncthreads();  // every warp's number is there before any adds up those before it
  uint32_t rank = 0;
  for (int w = 0; w < warp; ++w) rank += s.warp_ties[w];
  for (int at = begin; at < end && rank < first + num; at += 32) {
    const unsigned found = ties_at(at);
    const uint32_t mine = rank + __popc(found & ((1u << lane) - 1));
    if ((found >> lane & 1) != 0 && mine >= first && mine < first + num)
      to[mine - first] = at + lane;
    rank += __popc(found);
  }
  __syncthreads();  // `to` is written, and warp_ties may be used again
}

}  // namespace quire::cuda

#endif  // QUIRE_DECODE_CUDA_SAMPLING_SEARCH_CUH_
