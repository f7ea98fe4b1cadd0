// Sampling in three launches: ScanKernel reads every logit once; FinishKernel ends what needs no more
// than that; SearchKernel, a CTA per item, does draws, adjusted rows and alternatives.
#include <cstdint>

#include "base/maths.h"
#include "decode/cuda/sampling.h"
#include "decode/cuda/sampling_math.cuh"
#include "decode/cuda/sampling_search.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"

namespace quire::cuda {
namespace {

struct SampleView {
  SampleCapacity capacity;
  const float* logits;
  int64_t row_stride;
  const SampleCounts* counts;
  const SampleItem* items;
  const LogitBias* biases;
  const int32_t* text;
  const uint32_t* masks;
  ScanPart* parts;
  float* adjusted;
  uint32_t* occurrences;
  TokenLogprob* chosen;
  TokenLogprob* top;
  StatusWord status;

  __device__ int32_t VocabSize() const { return static_cast<int32_t>(capacity.vocab_size); }
  __device__ int32_t NumChunks() const {
    return static_cast<int32_t>(CeilDiv(capacity.vocab_size, kScanChunk));
  }
  __device__ RowValues Row(int32_t row) const {
    return {.values = logits + row * row_stride, .size = VocabSize()};
  }
  // The host has checked all of this; the device does not trust its memory.
  __device__ bool IsInside(const SampleItem& item) const {
    const int32_t vocab_size = VocabSize();
    const int32_t most_top = vocab_size < kMaxTopLogprobs ? vocab_size : kMaxTopLogprobs;
    const auto within = [](int64_t first, int64_t count, int64_t size) {
      return first >= 0 && count >= 0 && first + count <= size;
    };
    return item.row >= 0 && item.row < counts->num_rows && item.row < capacity.rows &&
           item.given >= kNoToken && item.given < vocab_size && item.num_top >= 0 &&
           item.num_top <= most_top && item.adjusted >= -1 && item.adjusted < capacity.adjusted &&
           within(item.first_bias, item.num_biases, capacity.biases) && item.num_prompt >= 0 &&
           within(item.first_text, int64_t{item.num_prompt} + item.num_output, capacity.text) &&
           within(item.first_path, item.num_path, capacity.text) && item.num_output >= 0 &&
           item.mask >= -1 && item.mask < capacity.masks && (item.mask < 0 || item.adjusted >= 0);
  }
  // The words of an item's mask; null: every token may be drawn.
  __device__ const uint32_t* MaskOf(const SampleItem& item) const {
    return item.mask < 0 ? nullptr : masks + item.mask * MaskWords(capacity.vocab_size);
  }
};

// ---- One pass over the logits ----

constexpr int kScanThreads = 256;
constexpr int kScanWarps = kScanThreads / 32;
constexpr int kScanEach = static_cast<int>(kScanChunk) / kScanThreads;
constexpr uint32_t kNoNan = 0xffffffffu;

// op over all of the CTA's threads; the result is right in every thread.
template <class T, class Op>
__device__ T OverScanThreads(T value, Op op) {
  __shared__ T scratch[kScanWarps];
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, half));
  }
  if (ThreadId() % 32 == 0) scratch[ThreadId() / 32] = value;
  __syncthreads();  // every warp's value is there before any thread reads them
  value = scratch[0];
  for (int w = 1; w < kScanWarps; ++w) value = op(value, scratch[w]);
  return value;
}

// One CTA per chunk and row. Each instance of OverScanThreads has its scratch, and is called once.
__global__ void __launch_bounds__(kScanThreads) ScanKernel(SampleView view) {
  TakeTurn();
  const int32_t chunk = static_cast<int32_t>(blockIdx.x);
  const int32_t row = static_cast<int32_t>(blockIdx.y);
  if (row >= view.counts->num_rows) return;  // the whole CTA
  const RowValues values = view.Row(row);
  const int32_t begin = chunk * static_cast<int32_t>(kScanChunk) + ThreadId();
  float mine[kScanEach];
#pragma unroll
  for (int i = 0; i < kScanEach; ++i) {
    const int32_t token = begin + i * kScanThreads;
    mine[i] = token < values.size ? values.values[token] : -INFINITY;
  }
  uint64_t best = ~uint64_t{0};
  uint32_t nan = kNoNan;
#pragma unroll
  for (int i = 0; i < kScanEach; ++i) {
    const auto token = static_cast<uint32_t>(begin + i * kScanThreads);
    const uint64_t key = uint64_t{KeyOf(mine[i])} << 32 | token;
    if (key < best) best = key;
    if (isnan(mine[i]) && token < nan) nan = token;
  }
  best = OverScanThreads(best, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
  nan = OverScanThreads(nan, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
  const float highest = ValueOf(static_cast<uint32_t>(best >> 32));
  uint64_t sum = 0;
  if (highest > -INFINITY) {
    const Weigher weigh = MakeWeigher(highest, 1.0f);
#pragma unroll
    for (int i = 0; i < kScanEach; ++i) sum += weigh(mine[i]);
  }
  sum = OverScanThreads(sum, [](uint64_t a, uint64_t b) { return a + b; });
  if (ThreadId() == 0) {
    view.parts[int64_t{row} * view.NumChunks() + chunk] = {.best = best, .sum = sum, .nan = nan};
  }
}

// ---- What a row comes to ----

struct RowSummary {
  uint32_t key;   // the highest logit's
  int32_t token;  // the first that has it
  bool has_nan;
  float log_sum_exp;

  // Whether there is a token to choose.
  __device__ bool Decides() const { return !has_nan && key < kLastKey; }
};

// By one warp; the same in all lanes, whichever warp it is.
__device__ RowSummary Summarize(const SampleView& view, int32_t row) {
  const int lane = ThreadId() % 32;
  const ScanPart* const parts = view.parts + int64_t{row} * view.NumChunks();
  uint64_t best = ~uint64_t{0};
  uint32_t nan = kNoNan;
  for (int c = lane; c < view.NumChunks(); c += 32) {
    if (parts[c].best < best) best = parts[c].best;
    if (parts[c].nan < nan) nan = parts[c].nan;
  }
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, best, half);
    const uint32_t other_nan = __shfl_xor_sync(kAllLanes, nan, half);
    if (other < best) best = other;
    if (other_nan < nan) nan = other_nan;
  }
  const auto key = static_cast<uint32_t>(best >> 32);
  const auto highest = static_cast<double>(ValueOf(key));
  double sum = 0;
  for (int c = lane; c < view.NumChunks(); c += 32) {
    if (parts[c].sum == 0) continue;  // nothing above -inf, whose difference would be NaN
    const auto below = static_cast<double>(ValueOf(static_cast<uint32_t>(parts[c].best >> 32)));
    sum += static_cast<double>(parts[c].sum) * exp(below - highest);
  }
  // Both of a pair add the same two numbers, so all lanes end with the same sum.
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
  float log_sum_exp = -INFINITY;
  if (key < kLastKey) log_sum_exp = static_cast<float>(highest + log(sum * 0x1p-44));
  if (nan != kNoNan) log_sum_exp = NAN;
  return {.key = key,
          .token = static_cast<int32_t>(best & 0xffffffffu),
          .has_nan = nan != kNoNan,
          .log_sum_exp = log_sum_exp};
}

__device__ TokenLogprob ChosenOf(const RowValues& row, int32_t token, float log_sum_exp) {
  TokenLogprob chosen;
  chosen.token = token;
  chosen.logprob = token == kNoToken ? 0.0f : LogprobOf(row.values[token], log_sum_exp);
  return chosen;
}

__device__ TokenLogprob FaultyToken(int32_t token) {
  TokenLogprob faulty;
  faulty.token = token;
  faulty.logprob = NAN;
  return faulty;
}

constexpr int kFinishWarps = 4;

// One warp per item: tokens given, and the highest of rows as they are.
__global__ void __launch_bounds__(kFinishWarps * 32) FinishKernel(SampleView view) {
  TakeTurn();
  const int32_t at = static_cast<int32_t>(blockIdx.x) * kFinishWarps + ThreadId() / 32;
  if (at >= view.capacity.items || at >= view.counts->num_items) return;
  const SampleItem& item = view.items[at];
  const bool first_lane = ThreadId() % 32 == 0;
  if (!view.IsInside(item)) {
    if (first_lane) {
      Report(view.status, DeviceFault::kCapacity, Launch::kSample, static_cast<uint32_t>(at));
      view.chosen[at] = ChosenOf({}, kNoToken, 0.0f);
    }
    return;
  }
  const RowSummary summary = Summarize(view, item.row);
  const bool is_given = item.kind == SampleKind::kGiven;
  if (summary.has_nan || (!is_given && !summary.Decides())) {
    if (first_lane) view.chosen[at] = FaultyToken(is_given ? item.given : kNoToken);
    return;
  }
  int32_t token = item.given;
  if (!is_given) {
    if (item.kind == SampleKind::kDraw || item.adjusted >= 0) return;  // SearchKernel's
    token = summary.token;
  }
  if (first_lane) view.chosen[at] = ChosenOf(view.Row(item.row), token, summary.log_sum_exp);
}

// ---- Draws ----

// The row with mask, bias and penalties, written by the whole CTA.
__device__ RowValues Adjusted(const SampleView& view, const SampleItem& item) {
  const RowValues row = view.Row(item.row);
  float* const values = view.adjusted + int64_t{item.adjusted} * view.capacity.vocab_size;
  uint32_t* const occurrences =
      view.occurrences + int64_t{item.adjusted} * view.capacity.vocab_size;
  const uint32_t* const mask = view.MaskOf(item);
  ForTokens(row, [&](int token, float value) {
    const bool allowed = mask == nullptr || (mask[token / 32] >> (token % 32) & 1u) != 0;
    values[token] = allowed ? value : -INFINITY;
    occurrences[token] = 0;
  });
  __syncthreads();  // all is copied before any of it is changed
  const LogitBias* const biases = view.biases + item.first_bias;
  for (int i = ThreadId(); i < item.num_biases; i += kSearchThreads) {
    const int32_t token = biases[i].token;
    if (token < 0 || token >= row.size) {
      Report(view.status, DeviceFault::kToken, Launch::kSample, item.first_bias + i);
      continue;
    }
    // The first bias of a token adds all of them, in order.
    bool first = true;
    for (int j = 0; j < i && first; ++j) first = biases[j].token != token;
    for (int j = i; j < item.num_biases && first; ++j) {
      if (biases[j].token != token) continue;
      values[token] = Changed(values[token], __fadd_rn(values[token], biases[j].bias));
    }
  }
  // Of the text: a bit for the prompt, one for every time in the output.
  const int32_t* const text = view.text + item.first_text;
  for (int i = ThreadId(); i < item.num_prompt + item.num_output; i += kSearchThreads) {
    if (text[i] < 0 || text[i] >= row.size) {
      Report(view.status, DeviceFault::kToken, Launch::kSample, item.first_text + i);
    } else if (i < item.num_prompt) {
      atomicOr(&occurrences[text[i]], 0x80000000u);
    } else {
      atomicAdd(&occurrences[text[i]], 1u);
    }
  }
  const int32_t* const path = view.text + item.first_path;
  for (int i = ThreadId(); i < item.num_path; i += kSearchThreads) {
    if (path[i] < 0 || path[i] >= row.size) {
      Report(view.status, DeviceFault::kToken, Launch::kSample, item.first_path + i);
    } else {
      atomicAdd(&occurrences[path[i]], 1u);
    }
  }
  __syncthreads();  // all is biased and counted
  if (HasPenalties(item)) {
    for (int token = ThreadId(); token < row.size; token += kSearchThreads) {
      const uint32_t seen = occurrences[token];
      if (seen == 0) continue;
      values[token] = Penalized(item, static_cast<int32_t>(seen & 0x7fffffffu), values[token]);
    }
  }
  __syncthreads();
  return {.values = values, .size = row.size};
}

// The key of the highest value, then its first token.
__device__ uint64_t Best(const RowValues& row, SearchStorage& s) {
  uint64_t best = ~uint64_t{0};
  ForTokens(row, [&](int token, float value) {
    const uint64_t key = uint64_t{KeyOf(value)} << 32 | static_cast<uint32_t>(token);
    if (key < best) best = key;
  });
  return LeastOverThreads(best, s);
}

// How many candidates are kept, and their weight.
struct Kept {
  uint64_t count;
  uint64_t weight;

  __device__ void Limit(uint64_t other_count, uint64_t other_weight) {
    if (other_count < count) count = other_count, weight = other_weight;
  }
};

// All filters keep a number of first candidates, so together they keep the least of these numbers.
__device__ Kept Keep(const RowValues& row, const SampleItem& item, uint32_t first_key,
                     const Weigher& weigh, SearchStorage& s) {
  uint64_t sum = 0, above = 0, num_above = 0;
  ForTokens(row, [&](int, float value) {
    const float weight = weigh.Weight(value);
    sum += FixedWeight(weight);
    if (weight >= item.min_p) above += FixedWeight(weight), ++num_above;
  });
  uint64_t total = SumOverThreads(sum, s);
  Kept kept = {.count = static_cast<uint64_t>(row.size), .weight = total};
  if (item.top_k > 0 && item.top_k < row.size) {
    const Cut cut =
        Search<Reach::kCount>(row, first_key, static_cast<uint64_t>(item.top_k), weigh, s);
    kept = {.count = cut.Count(), .weight = cut.weight};
    total = cut.weight;  // top-p is a part of what top-k leaves
  }
  if (item.min_p > 0.0f) {
    above = SumOverThreads(above, s);
    num_above = SumOverThreads(num_above, s);
    kept.Limit(num_above, above);
  }
  if (item.top_p < 1.0f) {
    const uint64_t target = PartOf(PartOfTopP(item.top_p), total);
    const Cut cut = Search<Reach::kWeight>(row, first_key, target > 0 ? target : 1, weigh, s);
    kept.Limit(cut.Count(), cut.weight);
  }
  return kept;
}

__device__ int32_t Draw(const RowValues& row, const SampleItem& item, uint32_t first_key,
                        SearchStorage& s) {
  const Weigher weigh = MakeWeigher(ValueOf(first_key), item.temperature);
  const Kept kept = Keep(row, item, first_key, weigh, s);
  const uint64_t target = PartOf(DrawBits(item.seed, item.sample, item.position), kept.weight);
  const Cut cut = Search<Reach::kWeight>(row, first_key, target > 0 ? target : 1, weigh, s);
  FindTies(row, cut.key, cut.taken - 1, 1, &s.token, s);
  return s.token;
}

// ---- Alternatives ----

// The num_top highest of a row as it is.
__device__ void FindTop(const RowValues& row, const RowSummary& summary, int32_t num_top,
                        TokenLogprob* top, SearchStorage& s) {
  const Cut cut =
      Search<Reach::kCount>(row, summary.key, static_cast<uint64_t>(num_top), NoWeight(), s);
  if (ThreadId() == 0) s.num_top = 0;
  __syncthreads();
  ForTokens(row, [&](int token, float value) {
    const uint32_t key = KeyOf(value);
    if (key >= cut.key) return;
    const uint32_t at = atomicAdd(&s.num_top, 1u);  // in any order: they are ranked below
    if (at < kMaxTopLogprobs) s.top_key[at] = key, s.top_token[at] = token;
  });
  FindTies(row, cut.key, 0, cut.taken, s.top_token + cut.before, s);  // which ends with a barrier
  const int i = ThreadId();
  if (i >= num_top) return;
  const auto key_at = [&](int j) {
    return j < static_cast<int>(cut.before) ? s.top_key[j] : cut.key;
  };
  const uint64_t mine = uint64_t{key_at(i)} << 32 | static_cast<uint32_t>(s.top_token[i]);
  int rank = 0;
  for (int j = 0; j < num_top; ++j) {
    rank += (uint64_t{key_at(j)} << 32 | static_cast<uint32_t>(s.top_token[j])) < mine ? 1 : 0;
  }
  TokenLogprob& to = top[rank];
  to.token = s.top_token[i];
  to.logprob = LogprobOf(ValueOf(key_at(i)), summary.log_sum_exp);
}

// One CTA per item; each has the SM's shared memory to itself.
__global__ void __launch_bounds__(kSearchThreads, 1) SearchKernel(SampleView view) {
  TakeTurn();
  extern __shared__ uint64_t storage[];
  SearchStorage& s = *reinterpret_cast<SearchStorage*>(storage);
  const int32_t at = static_cast<int32_t>(blockIdx.x);
  if (at >= view.counts->num_items) return;
  const SampleItem item = view.items[at];
  const bool plain =
      item.kind == SampleKind::kGiven || (item.kind == SampleKind::kHighest && item.adjusted < 0);
  if ((plain && item.num_top == 0) || !view.IsInside(item)) return;  // the whole CTA
  const RowSummary summary = Summarize(view, item.row);
  if (!plain && summary.Decides()) {
    uint32_t key = summary.key;
    RowValues row = view.Row(item.row);
    int32_t token = summary.token;
    if (item.adjusted >= 0) {
      row = Adjusted(view, item);
      const uint64_t best = Best(row, s);
      key = static_cast<uint32_t>(best >> 32);
      token = static_cast<int32_t>(best & 0xffffffffu);
    }
    const bool decides = key < kLastKey;  // not where a mask has ruled out all there is
    if (decides && item.kind == SampleKind::kDraw) token = Draw(row, item, key, s);
    if (ThreadId() == 0) {
      view.chosen[at] = decides ? ChosenOf(view.Row(item.row), token, summary.log_sum_exp)
                                : FaultyToken(kNoToken);
    }
    __syncthreads();  // the storage is free for what follows
  }
  if (item.num_top > 0) {
    FindTop(view.Row(item.row), summary, item.num_top, view.top + int64_t{at} * kMaxTopLogprobs, s);
  }
}

}  // namespace

void Sample(const SampleArgs& args, const Stream& stream) {
  Validate(args);
  const SampleCapacity& capacity = args.capacity;
  if (capacity.rows == 0 || capacity.items == 0) return;
  const SampleView view = {.capacity = capacity,
                           .logits = args.logits.Address<float>(),
                           .row_stride = args.logits.stride(0),
                           .counts = args.inputs.counts.data(),
                           .items = args.inputs.items.data(),
                           .biases = args.inputs.biases.data(),
                           .text = args.inputs.text.data(),
                           .masks = args.inputs.masks.data(),
                           .parts = args.scratch.parts.data(),
                           .adjusted = args.scratch.adjusted.data(),
                           .occurrences = args.scratch.occurrences.data(),
                           .chosen = args.results.chosen.data(),
                           .top = args.results.top.data(),
                           .status = args.status};
  const dim3 chunks(static_cast<unsigned>(CeilDiv(capacity.vocab_size, kScanChunk)),
                    static_cast<unsigned>(capacity.rows));
  LaunchAhead("sample: scan", ScanKernel, {.grid = chunks, .block = dim3(kScanThreads)}, stream,
              view);
  const dim3 finish(static_cast<unsigned>(CeilDiv(capacity.items, kFinishWarps)));
  LaunchAhead("sample: finish", FinishKernel, {.grid = finish, .block = dim3(kFinishWarps * 32)},
              stream, view);
  if (args.work == SampleWork::kScan) return;
  Check(cudaFuncSetAttribute(SearchKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(SearchStorage))),
        "sample: shared memory");
  LaunchAhead("sample: search", SearchKernel,
              {.grid = dim3(static_cast<unsigned>(capacity.items)),
               .block = dim3(kSearchThreads),
               .shared_bytes = sizeof(SearchStorage)},
              stream, view);
}

}  // namespace quire::cuda
