// What the records of a load amount to.
#ifndef QUIRE_CLI_LOADGEN_LOAD_STATS_H_
#define QUIRE_CLI_LOADGEN_LOAD_STATS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/loadgen/load_record.h"
#include "cli/loadgen/load_run.h"

namespace quire::cli {

// The value below which a part `p` (0..1) of the sorted samples lies; between two samples, on the
// line between them. 0 if there are none.
double Percentile(std::span<const double> sorted, double p);

struct Distribution {
  std::vector<double> sorted = {};
  double mean = 0;  // 0 if there are none

  double P(double percent) const { return Percentile(sorted, percent / 100); }
};
Distribution MakeDistribution(std::vector<double> samples);

// Times in seconds. Only whole answers count, except in `failures` and `num_unfinished`.
struct LoadSummary {
  int64_t num_ok = 0;
  int64_t num_unfinished = 0;
  std::map<std::string, int64_t> failures = {};           // by kind
  std::map<std::string, std::string> first_message = {};  // of each kind
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;  // of prompt_tokens
  // Answers whose server did not say how many tokens they have.
  int64_t num_without_usage = 0;
  Distribution ttft = {};  // from the beginning to the first text
  Distribution itl = {};   // between two pieces of text, of which each may hold several tokens
  Distribution tpot = {};  // (end - first text) / (output tokens - 1), of each answer
  Distribution e2e = {};   // from the beginning to [DONE]
  double requests_per_s = 0;
  double prompt_tokens_per_s = 0;
  double output_tokens_per_s = 0;

  int64_t num_failed() const;
  double cached_share() const;  // 0..1
};
LoadSummary Summarise(const LoadResult& result);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_STATS_H_
