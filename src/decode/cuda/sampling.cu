// Sampling in three launches: ScanKernel reads every logit once; FinishKernel ends what needs no more
// than that; SearchKernel, a cluster of CTAs per item or one, does draws, adjusted rows and alternatives.
#include <cstdint>

#include "base/maths.h"
#include "decode/cuda/sampling.h"
#include "decode/cuda/sampling_math.cuh"
#include "decode/cuda/sampling_search.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"

namespace quire::cuda {
namespace {

// A whole row.
struct RowValues {
  const float* values;
  int32_t size;
};

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

struct SearchArgs {
  SampleView view;
  SearchShape shape;

  // This CTA's part of a row.
  __device__ RowSlice SliceOf(const RowValues& row, uint32_t rank) const {
    const int32_t first = static_cast<int32_t>(rank) * shape.slice;
    const int32_t left = row.size - first;
    return {.values = row.values + first,
            .first = first,
            .size = left < 0             ? 0
                    : left < shape.slice ? left
                                         : shape.slice};
  }
};

// To `values`, the slice with mask, bias and penalties, by the whole CTA. Slices have nothing to do with each
// other.
__device__ void Adjust(const SampleView& view, const SampleItem& item, const RowSlice& row,
                       float* values) {
  uint32_t* const occurrences =
      view.occurrences + int64_t{item.adjusted} * view.capacity.vocab_size + row.first;
  const uint32_t* const mask = view.MaskOf(item);
  ForTokens(row, [&](int i, float value) {
    const int32_t token = row.first + i;
    const bool allowed = mask == nullptr || (mask[token / 32] >> (token % 32) & 1u) != 0;
    values[i] = allowed ? value : -INFINITY;
    occurrences[i] = 0;
  });
  __syncthreads();  // all is copied before any of it is changed
  const int32_t vocab_size = view.VocabSize();
  const auto is_token = [&](int32_t token) { return token >= 0 && token < vocab_size; };
  // Below 0, or the slice's size or more, where it is another CTA's.
  const auto place_of = [&](int32_t token) { return token - row.first; };
  const auto is_here = [&](int32_t i) { return i >= 0 && i < row.size; };
  const LogitBias* const biases = view.biases + item.first_bias;
  for (int i = ThreadId(); i < item.num_biases; i += kSearchThreads) {
    const int32_t token = biases[i].token;
    if (!is_token(token)) {
      Report(view.status, DeviceFault::kToken, Launch::kSample, item.first_bias + i);
      continue;
    }
    const int32_t at = place_of(token);
    // The first bias of a token adds all of them, in order.
    bool first = is_here(at);
    for (int j = 0; j < i && first; ++j) first = biases[j].token != token;
    for (int j = i; j < item.num_biases && first; ++j) {
      if (biases[j].token != token) continue;
      values[at] = Changed(values[at], __fadd_rn(values[at], biases[j].bias));
    }
  }
  // Of the text: a bit for the prompt, one for every time in the output.
  const auto count = [&](int32_t first, int32_t num, auto add) {
    const int32_t* const text = view.text + first;
    for (int i = ThreadId(); i < num; i += kSearchThreads) {
      if (!is_token(text[i])) {
        Report(view.status, DeviceFault::kToken, Launch::kSample, first + i);
      } else if (is_here(place_of(text[i]))) {
        add(i, &occurrences[place_of(text[i])]);
      }
    }
  };
  count(item.first_text, item.num_prompt + item.num_output, [&](int i, uint32_t* seen) {
    if (i < item.num_prompt) {
      atomicOr(seen, 0x80000000u);
    } else {
      atomicAdd(seen, 1u);
    }
  });
  count(item.first_path, item.num_path, [](int, uint32_t* seen) { atomicAdd(seen, 1u); });
  __syncthreads();  // all is biased and counted
  if (HasPenalties(item)) {
    for (int i = ThreadId(); i < row.size; i += kSearchThreads) {
      const uint32_t seen = occurrences[i];
      if (seen == 0) continue;
      values[i] = Penalized(item, static_cast<int32_t>(seen & 0x7fffffffu), values[i]);
    }
  }
  __syncthreads();
}

// The candidate that comes first.
__device__ uint64_t Best(Team& team, const RowSlice& row) {
  uint64_t best = ~uint64_t{0};
  ForTokens(row, [&](int i, float value) {
    const uint64_t candidate = CandidateOf(KeyOf(value), row.first + i);
    if (candidate < best) best = candidate;
  });
  return LeastOverTeam(team, best);
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
__device__ Kept Keep(Team& team, const RowSlice& row, int32_t vocab_size, const SampleItem& item,
                     uint32_t first_key, const BinSums& first_sums, const Weigher& weigh,
                     Sorted& sorted) {
  uint64_t total = __shfl_sync(kAllLanes, SumThrough(first_sums.weight), kWarp - 1);
  Kept kept = {.count = static_cast<uint64_t>(vocab_size), .weight = total};
  if (item.top_k > 0 && item.top_k < vocab_size) {
    const Cut cut = Search(team, row, first_key, first_sums, Reach::kCount,
                           static_cast<uint64_t>(item.top_k), weigh, Listing::kFirst, sorted);
    kept = {.count = cut.count, .weight = cut.weight};
    total = cut.weight;  // top-p is a part of what top-k leaves
  }
  if (item.min_p > 0.0f) {
    uint64_t above = 0, num_above = 0;
    ForTokens(row, [&](int, float value) {
      const float weight = weigh.Weight(value);
      if (weight >= item.min_p) above += FixedWeight(weight), ++num_above;
    });
    above = SumOverTeam(team, above);
    num_above = SumOverTeam(team, num_above);
    kept.Limit(num_above, above);
  }
  if (item.top_p < 1.0f) {
    const uint64_t target = PartOf(PartOfTopP(item.top_p), total);
    const Cut cut = Search(team, row, first_key, first_sums, Reach::kWeight,
                           target > 0 ? target : 1, weigh, Listing::kFirst, sorted);
    kept.Limit(cut.count, cut.weight);
  }
  return kept;
}

__device__ int32_t Draw(Team& team, const RowSlice& row, int32_t vocab_size, const SampleItem& item,
                        uint32_t first_key) {
  const Weigher weigh = MakeWeigher(ValueOf(first_key), item.temperature);
  const BinSums first_sums = FillFirstBins(team, row, first_key, weigh);
  Sorted sorted;
  const Kept kept = Keep(team, row, vocab_size, item, first_key, first_sums, weigh, sorted);
  const uint64_t target = PartOf(DrawBits(item.seed, item.sample, item.position), kept.weight);
  const Cut cut = Search(team, row, first_key, first_sums, Reach::kWeight, target > 0 ? target : 1,
                         weigh, Listing::kFew, sorted);
  return TokenOfCandidate(cut.candidate);
}

// ---- Alternatives ----

// The num_top highest of a row as it is.
__device__ void FindTop(Team& team, const RowSlice& row, const RowSummary& summary, int32_t num_top,
                        TokenLogprob* top) {
  ListFirst(team, row, summary.key, static_cast<uint32_t>(num_top));
  const int i = ThreadId();
  if (team.rank() > 0 || i >= num_top) return;
  const uint64_t candidate = team.s.list[i];
  top[i].token = TokenOfCandidate(candidate);
  top[i].logprob = LogprobOf(ValueOf(KeyOfCandidate(candidate)), summary.log_sum_exp);
}

// A cluster per item, or one CTA; each has the SM's shared memory to itself. All CTAs of an item go the same
// way.
__global__ void __launch_bounds__(kSearchThreads, 1)
    SearchKernel(const __grid_constant__ SearchArgs args) {
  TakeTurn();
  SearchStorage& s = *reinterpret_cast<SearchStorage*>(LaunchedShared<16>());
  float* const held = reinterpret_cast<float*>(&s + 1);
  const SampleView& view = args.view;
  const auto num_ctas = static_cast<uint32_t>(args.shape.ctas);
  const auto at = static_cast<int32_t>(blockIdx.x / num_ctas);
  if (at >= view.counts->num_items) return;
  const SampleItem item = view.items[at];
  const bool plain =
      item.kind == SampleKind::kGiven || (item.kind == SampleKind::kHighest && item.adjusted < 0);
  if ((plain && item.num_top == 0) || !view.IsInside(item)) return;  // the whole cluster
  Team team(blockIdx.x % num_ctas, num_ctas, s);
  team.Arrive();
  const RowSlice as_it_is = args.SliceOf(view.Row(item.row), team.rank());
  const auto slice_at = [&](const float* values) -> RowSlice {
    return {.values = values, .first = as_it_is.first, .size = as_it_is.size};
  };
  const bool is_adjusted = !plain && item.adjusted >= 0;
  if (args.shape.is_held && !is_adjusted) BeginCopy(as_it_is, held);
  const RowSummary summary = Summarize(view, item.row);
  WaitForCopies<0>();
  __syncthreads();  // the slice is there
  team.Begin();
  RowSlice row = args.shape.is_held ? slice_at(held) : as_it_is;
  if (!plain && summary.Decides()) {
    uint32_t key = summary.key;
    int32_t token = summary.token;
    if (is_adjusted) {
      float* const values =
          args.shape.is_held
              ? held
              : view.adjusted + int64_t{item.adjusted} * view.VocabSize() + as_it_is.first;
      Adjust(view, item, as_it_is, values);
      row = slice_at(values);
      const uint64_t best = Best(team, row);
      key = KeyOfCandidate(best);
      token = TokenOfCandidate(best);
    }
    const bool decides = key < kLastKey;  // not where a mask has ruled out all there is
    if (decides && item.kind == SampleKind::kDraw) {
      token = Draw(team, row, view.VocabSize(), item, key);
    }
    if (team.rank() == 0 && ThreadId() == 0) {
      view.chosen[at] = decides ? ChosenOf(view.Row(item.row), token, summary.log_sum_exp)
                                : FaultyToken(kNoToken);
    }
  }
  if (item.num_top == 0) return;
  if (is_adjusted) {
    row = as_it_is;
    if (args.shape.is_held) {
      __syncthreads();  // the adjusted slice is read no more
      BeginCopy(as_it_is, held);
      WaitForCopies<0>();
      __syncthreads();  // the slice is there
      row = slice_at(held);
    }
  }
  FindTop(team, row, summary, item.num_top, view.top + int64_t{at} * kMaxTopLogprobs);
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
  const SearchShape shape = SearchShapeOf(capacity);
  const size_t held_bytes = shape.is_held ? static_cast<size_t>(shape.slice) * sizeof(float) : 0;
  const size_t shared_bytes = sizeof(SearchStorage) + held_bytes;
  constexpr size_t kMostBytes = sizeof(SearchStorage) + kMostHeldLogits * sizeof(float);
  Check(cudaFuncSetAttribute(SearchKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kMostBytes)),
        "sample: shared memory");
  LaunchAhead("sample: search", SearchKernel,
              {.grid = dim3(static_cast<unsigned>(capacity.items * shape.ctas)),
               .block = dim3(kSearchThreads),
               .shared_bytes = shared_bytes,
               .cluster = static_cast<unsigned>(shape.ctas)},
              stream, SearchArgs{.view = view, .shape = shape});
}

}  // namespace quire::cuda
