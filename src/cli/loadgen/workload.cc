#include "cli/loadgen/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cli/parse.h"
#include "text/common_words.h"

namespace quire::cli {
namespace {

constexpr int64_t kMaxRequestLength = 1'000'000;
constexpr std::string_view kLognormal = "lognormal:";
constexpr uint32_t kLengths = 0;
constexpr uint32_t kWords = 1;

std::vector<double> ParseNumbers(std::string_view where, std::string_view text) {
  std::vector<double> numbers;
  while (true) {
    const std::string_view piece = text.substr(0, text.find(','));
    numbers.push_back(ParseNumber(where, piece, 0, static_cast<double>(kMaxRequestLength)));
    if (piece.size() == text.size()) return numbers;
    text.remove_prefix(piece.size() + 1);
  }
}

LengthDistribution ParseLognormal(std::string_view where, std::string_view text) {
  const std::vector<double> numbers = ParseNumbers(where, text);
  Require(numbers.size() == 2 || numbers.size() == 3,
          "{}: expected lognormal:MEAN,SIGMA or lognormal:MEAN,SIGMA,MAX, got {} numbers", where,
          numbers.size());
  const double max = numbers.size() == 3 ? numbers[2] : static_cast<double>(kMaxRequestLength);
  Require(numbers[0] >= 1 && numbers[0] <= max, "{}: expected a mean in 1..{}, got {}", where, max,
          numbers[0]);
  Require(numbers[1] <= 5, "{}: expected a sigma in 0..5, got {}", where, numbers[1]);
  return {.kind = LengthDistribution::Kind::kLognormal,
          .max = static_cast<int64_t>(max),
          .mean = numbers[0],
          .sigma = numbers[1]};
}

}  // namespace

LengthDistribution ParseLength(std::string_view where, std::string_view text) {
  if (text.starts_with(kLognormal)) {
    return ParseLognormal(where, text.substr(kLognormal.size()));
  }
  const size_t dash = std::min(text.find('-', 1), text.size());
  const int64_t min = ParseInt(where, text.substr(0, dash), 1, kMaxRequestLength);
  if (dash == text.size()) return {.min = min, .max = min};
  return {.min = min, .max = ParseInt(where, text.substr(dash + 1), min, kMaxRequestLength)};
}

std::string ToText(const LengthDistribution& lengths) {
  if (lengths.kind == LengthDistribution::Kind::kLognormal) {
    return fmt::format("{}{},{}{}", kLognormal, lengths.mean, lengths.sigma,
                       lengths.max < kMaxRequestLength ? fmt::format(",{}", lengths.max) : "");
  }
  if (lengths.min == lengths.max) return std::to_string(lengths.min);
  return fmt::format("{}-{}", lengths.min, lengths.max);
}

Random MakeRandom(uint64_t seed, uint32_t run, uint32_t purpose) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), run,
                         purpose};
  return Random(sequence);
}

// 53 bits, as many as a double holds.
double DrawUnit(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

int64_t DrawLength(const LengthDistribution& lengths, Random& random) {
  if (lengths.kind == LengthDistribution::Kind::kUniform) {
    // A remainder of 64 bits prefers some lengths by less than one in 2^44.
    const auto span = static_cast<uint64_t>(lengths.max - lengths.min + 1);
    return lengths.min + static_cast<int64_t>(random() % span);
  }
  // Box and Muller; exp(mu + sigma^2 / 2) is the mean of a lognormal.
  const double radius = std::sqrt(-2 * std::log1p(-DrawUnit(random)));
  const double normal = radius * std::cos(2 * std::numbers::pi * DrawUnit(random));
  const double mu = std::log(lengths.mean) - lengths.sigma * lengths.sigma / 2;
  const double length = std::round(std::exp(mu + lengths.sigma * normal));
  return static_cast<int64_t>(
      std::clamp(length, static_cast<double>(lengths.min), static_cast<double>(lengths.max)));
}

double DrawGap(double rate, Random& random) { return -std::log1p(-DrawUnit(random)) / rate; }

Workload::Workload(const WorkloadOptions& options, uint32_t run)
    : options_(options),
      lengths_(MakeRandom(options.seed, run, kLengths)),
      words_(MakeRandom(options.seed, run, kWords)) {
  for (int64_t i = 0; options.shared_prefix > 0 && i < options.num_prefixes; ++i) {
    prefixes_.push_back(DrawWords(options.shared_prefix) + " ");
  }
}

std::string Workload::DrawWords(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += CommonWords()[words_() % CommonWords().size()];
  }
  return text;
}

PlannedRequest Workload::Next() {
  PlannedRequest request;
  const int64_t own_words = DrawLength(options_.input, lengths_);
  request.max_tokens = DrawLength(options_.output, lengths_);
  request.input_words = own_words;
  if (!prefixes_.empty()) {
    request.prompt = prefixes_[next_prefix_];
    next_prefix_ = (next_prefix_ + 1) % prefixes_.size();
    request.input_words += options_.shared_prefix;
  }
  request.prompt += DrawWords(own_words);
  return request;
}

}  // namespace quire::cli
