// Values as people type them: converted, or refused with where they stand, the expected and the
// actual.
#ifndef QUIRE_CLI_PARSE_H_
#define QUIRE_CLI_PARSE_H_

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/json.h"

namespace quire::cli {

// Those that parse throw Error(kInvalidArgument). `where` names the flag, variable or file in the message.
int64_t ParseInt(std::string_view where, std::string_view text, int64_t min,
                 int64_t max = std::numeric_limits<int64_t>::max());
double ParseNumber(std::string_view where, std::string_view text, double min, double max);
// More than 0, at most 1.
double ParseFraction(std::string_view where, std::string_view text);
// A time of a millisecond to a day, in seconds.
std::chrono::milliseconds ParseSeconds(std::string_view where, std::string_view text);
// One or more integers between commas or spaces, or as a JSON array.
std::vector<int64_t> ParseInts(std::string_view where, std::string_view text, int64_t min,
                               int64_t max = std::numeric_limits<int64_t>::max());

// People write the base URL of a server with and without its "/v1": this is without.
std::string WithoutVersion(std::string url);

template <class T>
struct Choice {
  const char* name;
  T value;
};

template <class T>
T ParseChoice(std::string_view where, std::string_view text,
              std::initializer_list<Choice<T>> choices) {
  std::string names;
  for (const Choice<T>& choice : choices) {
    if (text == choice.name) return choice.value;
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  }
  throw Error(ErrorCode::kInvalidArgument, "{}: expected one of {}, got {}", where, names,
              QuoteForMessage(text));
}

}  // namespace quire::cli

#endif  // QUIRE_CLI_PARSE_H_
