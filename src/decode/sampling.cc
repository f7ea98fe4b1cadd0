#include "decode/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/error.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- Passes over a row, in blocks of a fixed length ----
//
// Fixed, so that compilers turn the loop over a block into vectors of any width, and lane i always
// sums elements i, i + kLanes, ...: one order for every machine.

// 32 and not 16: of loops up to 16 long GCC's -O3 makes straight code first, and then no vectors.
constexpr size_t kLanes = 32;

// Calls fn(block) for every kLanes values; the last block is filled up with -inf, which weighs
// nothing and is no maximum.
template <class Fn>
void ForEachBlock(std::span<const float> values, Fn fn) {
  const size_t whole = values.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) fn(values.data() + i);
  if (whole == values.size()) return;
  std::array<float, kLanes> last;
  last.fill(-kInfinity);
  std::copy(values.begin() + static_cast<ptrdiff_t>(whole), values.end(), last.begin());
  fn(last.data());
}

// NaN if any value is, otherwise the highest.
float Highest(std::span<const float> values) {
  std::array<float, kLanes> highest;
  highest.fill(-kInfinity);
  std::array<int32_t, kLanes> nans = {};
  ForEachBlock(values, [&](const float* block) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      highest[lane] = block[lane] > highest[lane] ? block[lane] : highest[lane];
      nans[lane] |= block[lane] != block[lane] ? 1 : 0;
    }
  });
  if (std::any_of(nans.begin(), nans.end(), [](int32_t nan) { return nan != 0; })) return kNaN;
  return *std::max_element(highest.begin(), highest.end());
}

// Where ExpOfMinus ends; floats begin to lose bits at 87.3.
constexpr float kMostExponent = 87.0f;
// A little above exp(-87) = 1.65e-38: what weighs less weighs nothing.
constexpr float kLeastWeight = 1.7e-38f;

// exp(-x), x clamped to 0..87. Error below 2^-22 of the result, by trying every float. std::exp is
// a call per value, which takes twice as long over a row, and libraries differ in its last bit.
inline float ExpOfMinus(float x) {
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts; the first has few enough bits for its product with an exponent to be exact.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Added to a small number, leaves its nearest integer in the lowest bits of the sum.
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

  // As integers, which order floats from 0 up as they are ordered and put negative ones below:
  // of comparisons of floats GCC makes branches, and then no vectors.
  const int32_t clamped =
      std::clamp(std::bit_cast<int32_t>(x), 0, std::bit_cast<int32_t>(kMostExponent));
  const float exponent = -std::bit_cast<float>(clamped);
  const float rounded = exponent * kLog2E + kRound;
  const float doublings = rounded - kRound;
  const float r = (exponent - doublings * kLn2High) - doublings * kLn2Low;
  // exp(r) over abs(r) <= ln(2) / 2: the polynomial of Cephes' expf, in pairs, which take less
  // time to follow each other than single terms.
  const float r2 = r * r;
  const float p76 = 1.9875691500e-4f * r + 1.3981999507e-3f;
  const float p54 = 8.3334519073e-3f * r + 4.1665795894e-2f;
  const float p32 = 1.6666665459e-1f * r + 5.0000001201e-1f;
  const float p = ((p76 * r2 + p54) * r2 + p32) * r2 + (r + 1.0f);
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) + 127u) << 23);
  return p * power;
}

// A value's weight: its probability as a part of the highest one's. The highest comes off before
// the scale goes on, so nothing overflows, and the highest itself weighs exactly 1.
struct Weigher {
  float highest = 0;
  float scale = 1;  // 1 / temperature

  float operator()(float value) const { return ExpOfMinus((highest - value) * scale); }
};

// `highest` as Highest gave it. The smallest temperatures have no finite inverse.
Weigher MakeWeigher(float highest, float temperature) {
  return {.highest = std::min(highest, kMaxFloat), .scale = std::min(1 / temperature, kMaxFloat)};
}

double TotalWeight(std::span<const float> values, const Weigher& weigh) {
  std::array<double, kLanes> sums = {};
  ForEachBlock(values, [&](const float* block) {
    std::array<float, kLanes> weights;  // apart from the sums: of one loop Clang makes no vectors
    for (size_t lane = 0; lane < kLanes; ++lane) weights[lane] = weigh(block[lane]);
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(weights[lane]);
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

// ---- Candidates ----

struct Candidate {
  float value = 0;  // never NaN or +inf
  float weight = 0;
  int32_t token = 0;
};

bool Before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// Comparisons decide, so NaN comes out as -inf.
float Rankable(float value) { return value > -kInfinity ? std::min(value, kMaxFloat) : -kInfinity; }

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += static_cast<double>(candidate.weight);
  return total;
}

// Moves the first `count` in candidate order to the front, the last of them to its place.
void MoveFirst(std::span<Candidate> candidates, size_t count) {
  const auto begin = candidates.begin();
  std::nth_element(begin, begin + static_cast<ptrdiff_t>(count) - 1, candidates.end(), Before);
}

// The first `count` (1..values.size()) in candidate order, not sorted, without weights. `room`
// holds more than `count`, or all values. What passes the bar is collected; when the room is full
// only the best stay and the last of them is the new bar, which few pass.
std::span<Candidate> FirstCandidates(std::span<const float> values, size_t count,
                                     std::span<Candidate> room) {
  size_t filled = 0;
  float bar = kNaN;  // nothing is below or equal
  for (size_t token = 0; token < values.size(); ++token) {
    if (values[token] <= bar) continue;  // also on a tie: the bar's token is lower
    room[filled++] = {.value = Rankable(values[token]), .token = static_cast<int32_t>(token)};
    if (filled < room.size()) continue;
    MoveFirst(room, count);
    filled = count;
    bar = room[count - 1].value;
  }
  if (filled > count) MoveFirst(room.first(filled), count);
  return room.first(count);
}

// All candidates of at least `least` weight, in token order.
std::span<Candidate> CandidatesAbove(std::span<const float> values, const Weigher& weigh,
                                     double least, std::span<Candidate> room) {
  // The value that weighs a little less (1%) than that: below it there is nothing to weigh.
  const double bar = weigh.highest + (std::log(least) - 0.01) / weigh.scale;
  const float lowest = static_cast<float>(std::max(bar, -double{kMaxFloat}));
  size_t filled = 0;
  for (size_t token = 0; token < values.size(); ++token) {
    if (values[token] < lowest) continue;
    const float weight = weigh(values[token]);
    if (weight < least) continue;
    room[filled++] = {
        .value = Rankable(values[token]), .weight = weight, .token = static_cast<int32_t>(token)};
  }
  return room.first(filled);
}

// How many candidates, taken in order, it needs for their weights to reach `weight`: at least one,
// and all if rounding keeps them below. Moves these to the front and the last of them to its place.
//
// Halves the range in which the last one lies until there is little to sort: linear in the number
// of candidates, where sorting a flat vocabulary takes several times as long.
size_t CountToWeight(std::span<Candidate> candidates, double weight) {
  constexpr size_t kFewToSort = 32;
  size_t begin = 0;
  size_t end = candidates.size();
  double reached = 0;  // by those before `begin`
  while (end - begin > kFewToSort) {
    const size_t half = (end - begin) / 2;
    MoveFirst(candidates.subspan(begin, end - begin), half);
    const double more = TotalWeight(candidates.subspan(begin, half));
    if (reached + more >= weight) {
      end = begin + half;
    } else {
      begin += half;
      reached += more;
    }
  }
  const auto rest = candidates.subspan(begin, end - begin);
  std::sort(rest.begin(), rest.end(), Before);
  for (const Candidate& candidate : rest) {
    ++begin;
    reached += static_cast<double>(candidate.weight);
    if (reached >= weight) break;
  }
  return begin;
}

// ---- Masks, bias and penalties ----

void RuleOut(std::span<const uint32_t> mask, std::span<float> logits) {
  for (size_t token = 0; token < logits.size(); ++token) {
    if ((mask[token / 32] >> (token % 32) & 1u) == 0) logits[token] = -kInfinity;
  }
}

// Sets `logit`, but no change rules a token out by overflow or brings back one that is (-inf).
void Change(float& logit, float changed) {
  if (logit > -kInfinity) logit = std::clamp(changed, -kMaxFloat, kMaxFloat);
}

void AddBias(std::span<const LogitBias> biases, std::span<float> logits) {
  for (const LogitBias& bias : biases) {
    float& logit = logits[static_cast<size_t>(bias.token)];
    Change(logit, logit + bias.bias);
  }
}

void Penalize(const SamplingParams& params, int32_t count, float& logit) {
  Change(logit, logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty);
  Change(logit, logit - static_cast<float>(count) * params.frequency_penalty);
  if (count > 0) Change(logit, logit - params.presence_penalty);
}

// `counts` has an entry per token; only those of the text are written and read.
void PenalizeText(const SampleArgs& args, std::span<int32_t> counts, std::span<float> logits) {
  RequireTokens("prompt", args.prompt, std::ssize(logits));
  RequireTokens("output", args.output, std::ssize(logits));
  RequireTokens("path", args.path, std::ssize(logits));
  constexpr int32_t kDone = -1;
  const auto texts = {args.prompt, args.output, args.path};
  for (const auto text : texts) {
    for (int32_t token : text) counts[static_cast<size_t>(token)] = 0;
  }
  for (const auto text : {args.output, args.path}) {
    for (int32_t token : text) ++counts[static_cast<size_t>(token)];
  }
  for (const auto text : texts) {
    for (int32_t token : text) {
      int32_t& count = counts[static_cast<size_t>(token)];
      if (count == kDone) continue;
      Penalize(args.params, count, logits[static_cast<size_t>(token)]);
      count = kDone;
    }
  }
}

// ---- One token ----

// The workspace, cut up. Counting is over before there are candidates.
struct Scratch {
  std::span<float> logits;
  std::span<Candidate> candidates;
  std::span<int32_t> counts;  // lies where the candidates do
};

constexpr size_t kScratchAlignment = 16;

size_t LogitBytes(size_t vocab_size) {
  return (vocab_size * sizeof(float) + kScratchAlignment - 1) / kScratchAlignment *
         kScratchAlignment;
}

Scratch CutUp(std::span<std::byte> workspace, size_t vocab_size) {
  std::byte* const behind_logits = workspace.data() + LogitBytes(vocab_size);
  return {.logits = {reinterpret_cast<float*>(workspace.data()), vocab_size},
          .candidates = {reinterpret_cast<Candidate*>(behind_logits), vocab_size},
          .counts = {reinterpret_cast<int32_t*>(behind_logits), vocab_size}};
}

void Check(const SampleArgs& args) {
  const int64_t vocab_size = std::ssize(args.logits);
  Validate(args.params, vocab_size);
  const int64_t needed = SamplerWorkspace(vocab_size).raw();
  Require(std::ssize(args.workspace) >= needed, "workspace: expected {} bytes, got {}", needed,
          args.workspace.size());
  Require(args.mask.empty() || std::ssize(args.mask) >= MaskWords(vocab_size),
          "mask: expected {} words, got {}", MaskWords(vocab_size), args.mask.size());
  Require(reinterpret_cast<uintptr_t>(args.workspace.data()) % kScratchAlignment == 0,
          "workspace: expected an address that is a multiple of {}", kScratchAlignment);
}

// The logits with mask, bias and penalties: the caller's own where there are none.
std::span<const float> Adjusted(const SampleArgs& args, const Scratch& scratch) {
  const bool penalties = HasPenalties(args.params);
  if (!penalties && args.params.logit_bias.empty() && args.mask.empty()) return args.logits;
  std::copy(args.logits.begin(), args.logits.end(), scratch.logits.begin());
  if (!args.mask.empty()) RuleOut(args.mask, scratch.logits);
  AddBias(args.params.logit_bias, scratch.logits);
  if (penalties) PenalizeText(args, scratch.counts, scratch.logits);
  return scratch.logits;
}

float RequireHighest(std::span<const float> values) {
  const float highest = Highest(values);
  if (std::isnan(highest)) {
    const auto nan = std::find_if(values.begin(), values.end(), [](float v) { return v != v; });
    throw Error(ErrorCode::kInvalidArgument, "logits[{}]: expected a number, got NaN",
                nan - values.begin());
  }
  Require(highest > -kInfinity, "logits: expected one of {} above -inf, got none", values.size());
  return highest;
}

// The lowest token whose value is `highest`, as Highest gave it.
int32_t HighestToken(std::span<const float> values, float highest) {
  const float limit = std::min(highest, kMaxFloat);  // +inf and the largest number tie
  const auto at = std::find_if(values.begin(), values.end(), [=](float v) { return v >= limit; });
  return static_cast<int32_t>(at - values.begin());
}

struct Kept {
  std::span<Candidate> candidates;
  double weight = 0;  // what a draw of 1 would reach
};

// A weight such that the tokens below it have, together, less than the part 1 - `part` of the total
// even if they are the whole vocabulary; half of it, out of the reach of rounding. So the first
// candidates that have `part` of the total are all above it.
double WeightOutside(double part, double total, size_t vocab_size) {
  return 0.5 * (1 - part) * total / static_cast<double>(vocab_size);
}

std::span<Candidate> KeepTopK(std::span<const float> values, size_t top_k, const Weigher& weigh,
                              std::span<Candidate> room) {
  const size_t used = std::min(2 * top_k, room.size());
  const auto candidates = FirstCandidates(values, top_k, room.first(used));
  for (Candidate& candidate : candidates) candidate.weight = weigh(candidate.value);
  return candidates;
}

std::span<Candidate> DropBelow(double least, std::span<Candidate> candidates) {
  const auto end = std::partition(candidates.begin(), candidates.end(),
                                  [=](const Candidate& c) { return c.weight >= least; });
  return {candidates.begin(), end};
}

Kept Keep(std::span<const float> values, const SamplingParams& params, const Weigher& weigh,
          double draw, std::span<Candidate> room) {
  // What weighs nothing is never drawn, not even by rounding. The candidates above min_p are the
  // first ones too, so it makes no difference that they are cut before those of top_p.
  const double least = std::max(params.min_p, kLeastWeight);
  const size_t top_k = static_cast<size_t>(params.top_k);
  const size_t vocab_size = values.size();

  Kept kept;
  double total = 0;
  if (top_k > 0 && top_k < vocab_size) {
    kept.candidates = KeepTopK(values, top_k, weigh, room);
    total = TotalWeight(kept.candidates);
    kept.candidates = DropBelow(least, kept.candidates);
  } else {
    total = TotalWeight(values, weigh);
    // Nothing is filtered: the draw itself says how far down it can reach.
    const bool all = params.top_p == 1 && params.min_p == 0;
    const double outside = WeightOutside(all ? draw : params.top_p, total, vocab_size);
    kept.candidates = CandidatesAbove(values, weigh, std::max(least, outside), room);
    if (all) return {kept.candidates, total};
  }
  if (params.top_p < 1) {
    kept.candidates =
        kept.candidates.first(CountToWeight(kept.candidates, double{params.top_p} * total));
  }
  kept.weight = TotalWeight(kept.candidates);
  return kept;
}

// One round of splitmix64 (Steele, Lea, Flood 2014): a bijection in which every bit of the state
// moves half of the result's.
uint64_t Mix(uint64_t state) {
  uint64_t x = state + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void RequireTokens(const char* what, std::span<const int32_t> tokens, int64_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    Require(tokens[i] >= 0 && tokens[i] < vocab_size, "{}[{}]: expected a token of 0..{}, got {}",
            what, i, vocab_size - 1, tokens[i]);
  }
}

ByteOffset SamplerWorkspace(int64_t vocab_size) {
  Require(vocab_size >= 1, "vocab_size: expected >= 1, got {}", vocab_size);
  const size_t tokens = static_cast<size_t>(vocab_size);
  return ByteOffset(LogitBytes(tokens) + tokens * sizeof(Candidate));
}

int32_t Sample(const SampleArgs& args) {
  Check(args);
  const Scratch scratch = CutUp(args.workspace, args.logits.size());
  const std::span<const float> values = Adjusted(args, scratch);
  const float highest = RequireHighest(values);
  if (args.params.temperature == 0 || args.params.top_k == 1) return HighestToken(values, highest);

  const Weigher weigh = MakeWeigher(highest, args.params.temperature);
  const double draw = UniformDraw(args.params.seed, args.sample, args.position);
  const Kept kept = Keep(values, args.params, weigh, draw, scratch.candidates);
  return kept.candidates[CountToWeight(kept.candidates, draw * kept.weight) - 1].token;
}

double UniformDraw(uint64_t seed, int32_t sample, TokenCount position) {
  const uint64_t stream = Mix(Mix(seed) ^ static_cast<uint32_t>(sample));
  const uint64_t bits = Mix(stream ^ static_cast<uint64_t>(position.raw()));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

float LogSumExp(std::span<const float> logits) {
  const float highest = Highest(logits);
  if (std::isnan(highest) || highest == -kInfinity) return highest;
  const Weigher weigh = MakeWeigher(highest, 1);
  return static_cast<float>(weigh.highest + std::log(TotalWeight(logits, weigh)));
}

float Logprob(float logit, float log_sum_exp) {
  return logit == -kInfinity ? logit : std::min(logit, kMaxFloat) - log_sum_exp;
}

void TopLogprobs(std::span<const float> logits, float log_sum_exp, std::span<TokenLogprob> top) {
  const size_t most = std::min<size_t>(kMaxTopLogprobs, logits.size());
  Require(top.size() <= most, "top: expected up to {} tokens, got {}", most, top.size());
  if (top.empty()) return;
  std::array<Candidate, size_t{2} * kMaxTopLogprobs> room;
  const auto first = FirstCandidates(logits, top.size(), std::span(room).first(2 * top.size()));
  std::sort(first.begin(), first.end(), Before);
  for (size_t i = 0; i < top.size(); ++i) {
    top[i] = {.token = first[i].token, .logprob = Logprob(first[i].value, log_sum_exp)};
  }
}

}  // namespace quire
