#include "cli/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace quire::cli {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// The next word of `text`, which loses it; empty if there is none.
std::string_view TakeWord(std::string_view& text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kSpace)));
  const std::string_view word = text.substr(0, text.find_first_of(kSpace));
  text.remove_prefix(word.size());
  return word;
}

// The text up to the next comma; `text` loses both.
std::string_view TakePiece(std::string_view& text) {
  const std::string_view piece = text.substr(0, text.find(','));
  text.remove_prefix(std::min(text.size(), piece.size() + 1));
  return piece;
}

// The part of all integers that is meant, in words.
std::string RangeInWords(int64_t min, int64_t max) {
  using Limits = std::numeric_limits<int64_t>;
  if (max < Limits::max()) return fmt::format(" in {}..{}", min, max);
  return min > Limits::min() ? fmt::format(" of {} or more", min) : "";
}

// nullopt unless all of it is a number.
std::optional<double> ReadNumber(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::vector<int64_t> ParseArray(std::string_view where, std::string_view text, int64_t min,
                                int64_t max) {
  const Json array = ParseJson(text, where);
  std::vector<int64_t> values;
  for (const JsonRef& element : JsonRef(array, where).Array()) {
    values.push_back(element.Int(min, max));
  }
  return values;
}

std::vector<int64_t> ParseWords(std::string_view where, std::string_view text, int64_t min,
                                int64_t max) {
  std::vector<int64_t> values;
  bool more = true;
  while (more) {
    more = text.find(',') != std::string_view::npos;
    std::string_view piece = TakePiece(text);
    std::string_view word = TakeWord(piece);
    do {
      values.push_back(ParseInt(fmt::format("{}: item {}", where, values.size()), word, min, max));
      word = TakeWord(piece);
    } while (!word.empty());
  }
  return values;
}

}  // namespace

int64_t ParseInt(std::string_view where, std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure == std::errc() && stop == end && value >= min && value <= max) return value;
  throw Error(ErrorCode::kInvalidArgument, "{}: expected an integer{}, got {}", where,
              RangeInWords(min, max), QuoteForMessage(text));
}

double ParseNumber(std::string_view where, std::string_view text, double min, double max) {
  const std::optional<double> value = ReadNumber(text);
  Require(value && *value >= min && *value <= max, "{}: expected a number in {}..{}, got {}", where,
          min, max, QuoteForMessage(text));
  return *value;
}

double ParseFraction(std::string_view where, std::string_view text) {
  const std::optional<double> value = ReadNumber(text);
  Require(value && *value > 0 && *value <= 1, "{}: expected a number above 0 and up to 1, got {}",
          where, QuoteForMessage(text));
  return *value;
}

std::chrono::milliseconds ParseSeconds(std::string_view where, std::string_view text) {
  constexpr double kMost = 86'400;
  const double seconds = ParseNumber(where, text, 0, kMost);
  Require(seconds >= 0.001, "{}: expected 0.001..{} seconds, got {}", where, kMost, seconds);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string WithoutVersion(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

std::vector<int64_t> ParseInts(std::string_view where, std::string_view text, int64_t min,
                               int64_t max) {
  const size_t begin = text.find_first_not_of(kSpace);
  Require(begin != std::string_view::npos, "{}: expected one or more integers, got none", where);
  if (text[begin] != '[') return ParseWords(where, text, min, max);
  const std::vector<int64_t> values = ParseArray(where, text, min, max);
  Require(!values.empty(), "{}: expected one or more integers, got none", where);
  return values;
}

}  // namespace quire::cli
