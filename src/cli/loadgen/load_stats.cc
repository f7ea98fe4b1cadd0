#include "cli/loadgen/load_stats.h"

#include <algorithm>
#include <numeric>

namespace quire::cli {
namespace {

struct Samples {
  std::vector<double> ttft, itl, tpot, e2e;
};

void AddTimes(const RequestRecord& record, Samples& samples) {
  samples.e2e.push_back(record.end - record.begin);
  if (record.deltas.empty()) return;
  samples.ttft.push_back(record.deltas.front() - record.begin);
  for (size_t i = 1; i < record.deltas.size(); ++i) {
    samples.itl.push_back(record.deltas[i] - record.deltas[i - 1]);
  }
  if (record.OutputTokens() < 2) return;
  samples.tpot.push_back((record.end - record.deltas.front()) /
                         static_cast<double>(record.OutputTokens() - 1));
}

void AddTokens(const RequestRecord& record, LoadSummary& summary) {
  summary.prompt_tokens += record.prompt_tokens.value_or(0);
  summary.output_tokens += record.OutputTokens();
  summary.cached_tokens += record.cached_tokens.value_or(0);
  if (!record.prompt_tokens || !record.output_tokens) ++summary.num_without_usage;
}

void AddRates(double seconds, LoadSummary& summary) {
  if (seconds <= 0) return;
  summary.requests_per_s = static_cast<double>(summary.num_ok) / seconds;
  summary.prompt_tokens_per_s = static_cast<double>(summary.prompt_tokens) / seconds;
  summary.output_tokens_per_s = static_cast<double>(summary.output_tokens) / seconds;
}

}  // namespace

double Percentile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution MakeDistribution(std::vector<double> samples) {
  Distribution distribution{.sorted = std::move(samples)};
  std::sort(distribution.sorted.begin(), distribution.sorted.end());
  if (distribution.sorted.empty()) return distribution;
  distribution.mean = std::accumulate(distribution.sorted.begin(), distribution.sorted.end(), 0.0) /
                      static_cast<double>(distribution.sorted.size());
  return distribution;
}

int64_t LoadSummary::num_failed() const {
  return std::accumulate(failures.begin(), failures.end(), int64_t{0},
                         [](int64_t sum, const auto& kind) { return sum + kind.second; });
}

double LoadSummary::cached_share() const {
  if (prompt_tokens == 0) return 0;
  return static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
}

LoadSummary Summarise(const LoadResult& result) {
  LoadSummary summary;
  Samples samples;
  for (const RequestRecord& record : result.records) {
    if (record.outcome == Outcome::kUnfinished) {
      ++summary.num_unfinished;
    } else if (IsFailure(record.outcome)) {
      ++summary.failures[OutcomeName(record)];
      summary.first_message.emplace(OutcomeName(record), record.message);
    } else {
      ++summary.num_ok;
      AddTimes(record, samples);
      AddTokens(record, summary);
    }
  }
  summary.ttft = MakeDistribution(std::move(samples.ttft));
  summary.itl = MakeDistribution(std::move(samples.itl));
  summary.tpot = MakeDistribution(std::move(samples.tpot));
  summary.e2e = MakeDistribution(std::move(samples.e2e));
  AddRates(result.seconds, summary);
  return summary;
}

}  // namespace quire::cli
