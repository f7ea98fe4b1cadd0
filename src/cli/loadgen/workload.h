// What a load sends: prompts of random words, answer lengths, and the times between arrivals; all
// from one seed, and the same on every platform.
#ifndef QUIRE_CLI_LOADGEN_WORKLOAD_H_
#define QUIRE_CLI_LOADGEN_WORKLOAD_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

// Lengths of 1 or more.
struct LengthDistribution {
  enum class Kind { kUniform, kLognormal };

  Kind kind = Kind::kUniform;
  int64_t min = 1;   // uniform, both inclusive; equal for one fixed length
  int64_t max = 1;   // also what lognormal lengths are cut to
  double mean = 0;   // lognormal: of the lengths, before they are cut
  double sigma = 0;  // lognormal: standard deviation of their logarithm
};

// "256", "100-500" (uniform), or "lognormal:MEAN,SIGMA" with an optional ",MAX". Throws
// Error(kInvalidArgument) with `where`.
LengthDistribution ParseLength(std::string_view where, std::string_view text);
// As ParseLength reads it.
std::string ToText(const LengthDistribution& lengths);

using Random = std::mt19937_64;
// At least 0 and less than 1.
double DrawUnit(Random& random);
int64_t DrawLength(const LengthDistribution& lengths, Random& random);
// The time to the next of arrivals that come independently, `rate` of them a second (Poisson).
double DrawGap(double rate, Random& random);

struct WorkloadOptions {
  LengthDistribution input = {};   // words of a prompt, besides the prefix
  LengthDistribution output = {};  // tokens of an answer
  int64_t shared_prefix = 0;       // words in front of each prompt
  int64_t num_prefixes = 1;        // so many different ones, in turn
  uint64_t seed = 1;
};

struct PlannedRequest {
  std::string prompt = {};
  int64_t input_words = 0;  // with the prefix
  int64_t max_tokens = 0;
};

// The requests of one run, one after the other.
class Workload {
 public:
  // Runs with different numbers have different prompts and prefixes: none finds its prompts in the
  // server's cache because of another.
  Workload(const WorkloadOptions& options, uint32_t run);

  PlannedRequest Next();

 private:
  std::string DrawWords(int64_t count);

  WorkloadOptions options_;
  Random lengths_;
  Random words_;
  std::vector<std::string> prefixes_;
  size_t next_prefix_ = 0;
};

// Randomness for one purpose of one run.
Random MakeRandom(uint64_t seed, uint32_t run, uint32_t purpose);
inline constexpr uint32_t kArrivals = 2;  // 0 and 1 are the workload's own

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_WORKLOAD_H_
