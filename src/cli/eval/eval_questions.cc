#include "cli/eval/eval_questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/input.h"
#include "io/json.h"

namespace quire::cli {
namespace {

constexpr std::string_view kMark = "####";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A number as it stands in a text, from `begin` on.
struct FoundNumber {
  std::string digits = {};  // with sign and point, without commas; empty: none begins here
  size_t end = 0;
};

// A comma or a point belongs to a number only between digits; a minus sign not behind one.
FoundNumber NumberAt(std::string_view text, size_t begin) {
  const auto digit_at = [&](size_t i) { return i < text.size() && IsDigit(text[i]); };
  FoundNumber found;
  size_t i = begin;
  if (text[i] == '-' && (i == 0 || !IsDigit(text[i - 1]))) found.digits += text[i++];
  if (i < text.size() && text[i] == '$') ++i;
  if (!digit_at(i)) return {};
  bool has_point = false;
  for (; digit_at(i) || (digit_at(i + 1) && !has_point && (text[i] == ',' || text[i] == '.'));
       ++i) {
    if (text[i] == '.') has_point = true;
    if (text[i] != ',') found.digits += text[i];
  }
  found.end = i;
  return found;
}

// "-0012.50" -> "-12.5", "-0" -> "0".
std::string Normalize(std::string number) {
  const bool is_negative = number.starts_with('-');
  if (is_negative) number.erase(0, 1);
  if (number.find('.') != std::string::npos) {
    while (number.ends_with('0')) number.pop_back();
    if (number.ends_with('.')) number.pop_back();
  }
  const size_t first = std::min(number.find_first_not_of('0'), number.size());
  number.erase(0, first);
  if (number.empty() || number.starts_with('.')) number.insert(0, "0");
  return is_negative && number != "0" ? "-" + number : number;
}

enum class Which { kFirst, kLast };

std::optional<std::string> FindIn(std::string_view text, Which which) {
  std::optional<std::string> number;
  for (size_t i = 0; i < text.size();) {
    const FoundNumber found = NumberAt(text, i);
    i = std::max(i + 1, found.end);
    if (found.digits.empty()) continue;
    number = Normalize(found.digits);
    if (which == Which::kFirst) break;
  }
  return number;
}

}  // namespace

std::optional<std::string> FindNumber(std::string_view text) {
  const size_t mark = text.rfind(kMark);
  return mark == std::string_view::npos ? FindIn(text, Which::kLast)
                                        : FindIn(text.substr(mark + kMark.size()), Which::kFirst);
}

std::vector<EvalQuestion> ReadQuestions(const std::filesystem::path& file) {
  constexpr int64_t kMaxBytes = int64_t{128} << 20;  // GSM8K has 5 MB
  std::istringstream in(ReadFile("--data", file, kMaxBytes));
  std::vector<EvalQuestion> questions;
  int64_t line_number = 0;
  for (std::string line; std::getline(in, line);) {
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}: line {}", file.string(), line_number);
    const Json json = ParseJson(line, where);
    const JsonRef root(json, where);
    EvalQuestion question{.question = root.At("question").String(),
                          .answer = root.At("answer").String()};
    const std::optional<std::string> number = FindNumber(question.answer);
    Require(question.answer.find(kMark) != std::string::npos && number.has_value(),
            "{}: answer: expected \"#### NUMBER\" at its end, got {}", where,
            QuoteForMessage(question.answer));
    question.number = *number;
    questions.push_back(std::move(question));
  }
  Require(!questions.empty(), "{}: expected a question on a line, got none", file.string());
  return questions;
}

std::string FewShotPrompt(std::span<const EvalQuestion> examples, const std::string& question) {
  std::string prompt;
  for (const EvalQuestion& example : examples) {
    prompt += fmt::format("Question: {}\nAnswer: {}\n\n", example.question, example.answer);
  }
  return prompt + fmt::format("Question: {}\nAnswer:", question);
}

Accuracy MakeAccuracy(int64_t num_right, int64_t count) {
  if (count == 0) return {.value = 0, .low = 0, .high = 1};
  constexpr double z = 1.959963984540054;  // of the normal distribution, 97.5%
  const double n = static_cast<double>(count);
  const double part = static_cast<double>(num_right) / n;
  const double scale = 1 + z * z / n;
  const double middle = (part + z * z / (2 * n)) / scale;
  const double half = z / scale * std::sqrt(part * (1 - part) / n + z * z / (4 * n * n));
  return {.value = part, .low = std::max(0.0, middle - half), .high = std::min(1.0, middle + half)};
}

}  // namespace quire::cli
