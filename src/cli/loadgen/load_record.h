// One request of a load, and how it went.
#ifndef QUIRE_CLI_LOADGEN_LOAD_RECORD_H_
#define QUIRE_CLI_LOADGEN_LOAD_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire::cli {

enum class Outcome {
  kOk,          // a whole answer: its text, a 2xx status, [DONE] at the end
  kHttpStatus,  // another status
  kConnection,  // no connection, or it broke before the answer began
  kTimeout,
  kEarlyEnd,     // the answer ended without [DONE]
  kMalformed,    // not what this endpoint answers
  kServerError,  // an error object in the middle of an answer
  kUnfinished,   // the run was ended first: neither a success nor a failure
};

inline bool IsFailure(Outcome outcome) {
  return outcome != Outcome::kOk && outcome != Outcome::kUnfinished;
}

// Times are in seconds from the beginning of the run.
struct RequestRecord {
  int64_t index = 0;
  int64_t input_words = 0;
  int64_t max_tokens = 0;
  double begin = 0;  // sent; with a request rate: when it was due
  double end = 0;
  std::vector<double> deltas = {};  // when each piece of text came
  // As the server counts, where it does.
  std::optional<int64_t> prompt_tokens = {};
  std::optional<int64_t> output_tokens = {};
  std::optional<int64_t> cached_tokens = {};
  std::string finish_reason = {};
  Outcome outcome = Outcome::kUnfinished;
  int http_status = 0;       // 0: no answer came
  std::string message = {};  // what went wrong

  // A server that does not count is taken to send one token in each piece.
  int64_t OutputTokens() const { return output_tokens.value_or(std::ssize(deltas)); }
};

// "ok", "timeout", ...; "http 503".
std::string OutcomeName(const RequestRecord& record);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_RECORD_H_
