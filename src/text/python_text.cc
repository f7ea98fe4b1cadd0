#include "text/python_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "text/python_tables.h"
#include "text/utf8.h"

namespace quire::jinja {
namespace {

// The range of the sorted `ranges` that could hold `code`, or null.
template <class Range>
const Range* Find(std::span<const Range> ranges, char32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](char32_t c, const Range& r) { return c < r.first; });
  if (after == ranges.begin() || (after - 1)->last < code) return nullptr;
  return &*(after - 1);
}

char32_t Convert(std::span<const CaseRange> ranges, char32_t code) {
  const CaseRange* range = Find(ranges, code);
  if (range == nullptr || (code - range->first) % range->stride != 0) return code;
  return static_cast<char32_t>(static_cast<int64_t>(code) + range->delta);
}

char32_t UpperOf(char32_t code) { return Convert(UpperRanges(), code); }
char32_t LowerOf(char32_t code) { return Convert(LowerRanges(), code); }

bool IsCased(char32_t code) { return UpperOf(code) != code || LowerOf(code) != code; }

void RequireRegularCase(char32_t code) {
  Require(Find(IrregularCaseRanges(), code) == nullptr,
          "the case of U+{:04X} is not changed one to one", static_cast<uint32_t>(code));
}

// `text` with every code point c at place i as convert(c, i).
template <class Fn>
std::string ConvertCase(std::string_view text, Fn convert) {
  std::u32string codes = Decode(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    RequireRegularCase(codes[i]);
    codes[i] = convert(codes[i], i);
  }
  return Encode(codes);
}

bool IsLineEnd(char32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool IsIn(char32_t code, std::string_view chars) {
  for (size_t at = 0; at < chars.size();) {
    if (NextCodePoint(chars, &at) == code) return true;
  }
  return false;
}

// Without the leading code points for which `drop` holds.
template <class Fn>
std::string_view DropLeft(std::string_view text, Fn drop) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!drop(NextCodePoint(text, &at))) return text.substr(begin);
  }
  return {};
}

template <class Fn>
std::string_view DropRight(std::string_view text, Fn drop) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    size_t at = begin;
    if (!drop(NextCodePoint(text, &at))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string Escape(char32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  const auto number = static_cast<uint32_t>(code);
  if (code < 0x100) return fmt::format("\\x{:02x}", number);
  return code < 0x10000 ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t* at) {
  const Utf8Step step = ReadUtf8(text.substr(*at));
  *at += step.length;
  return step.character;
}

std::u32string Decode(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t at = 0; at < text.size();) codes += NextCodePoint(text, &at);
  return codes;
}

std::string Encode(std::u32string_view codes) {
  std::string text;
  for (const char32_t code : codes) AppendUtf8(code, text);
  return text;
}

int64_t CountCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; });
}

// Unicode's White_Space and the four separators of ASCII.
bool IsSpace(char32_t code) { return IsWhiteSpace(code) || (code >= 0x1c && code <= 0x1f); }

bool IsPrintable(char32_t code) { return Find(NonPrintableRanges(), code) == nullptr; }

std::string_view StripLeft(std::string_view text) { return DropLeft(text, IsSpace); }
std::string_view StripRight(std::string_view text) { return DropRight(text, IsSpace); }
std::string_view Strip(std::string_view text) { return StripLeft(StripRight(text)); }
std::string_view StripLeft(std::string_view text, std::string_view chars) {
  return DropLeft(text, [chars](char32_t code) { return IsIn(code, chars); });
}
std::string_view StripRight(std::string_view text, std::string_view chars) {
  return DropRight(text, [chars](char32_t code) { return IsIn(code, chars); });
}

std::string Upper(std::string_view text) {
  return ConvertCase(text, [](char32_t code, size_t) { return UpperOf(code); });
}

std::string Lower(std::string_view text) {
  return ConvertCase(text, [](char32_t code, size_t) { return LowerOf(code); });
}

std::string Capitalize(std::string_view text) {
  return ConvertCase(text, [](char32_t c, size_t i) { return i == 0 ? UpperOf(c) : LowerOf(c); });
}

std::string Title(std::string_view text) {
  bool in_word = false;
  return ConvertCase(text, [&](char32_t code, size_t) {
    const bool begins_word = !in_word;
    in_word = IsCased(code);
    return begins_word ? UpperOf(code) : LowerOf(code);
  });
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t code = NextCodePoint(text, &at);
    if (!IsLineEnd(code)) continue;
    lines.push_back(text.substr(begin, end - begin));
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string Quote(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string quoted(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t code = NextCodePoint(text, &at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      quoted += {'\\', static_cast<char>(code)};
    } else if (IsPrintable(code)) {
      quoted += text.substr(begin, at - begin);
    } else {
      quoted += Escape(code);
    }
  }
  return quoted + quote;
}

std::string PrintFloat(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[32];  // a sign, 17 digits, a point and an exponent
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
  const std::string text(buffer, end.ptr);  // -d.ddde+xx
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;  // Python's bounds
  const size_t begin = text[0] == '-' ? 1 : 0;
  std::string digits = text.substr(begin, mark - begin);
  std::erase(digits, '.');
  if (exponent < 0) {
    digits.insert(0, static_cast<size_t>(-exponent), '0');
    digits.insert(1, ".");
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() < whole + 1) digits.append(whole + 1 - digits.size(), '0');
    digits.insert(whole, ".");
  }
  return text.substr(0, begin) + digits;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text);
  std::string plain(text);
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < plain.size() && plain[at] >= '0' && plain[at] <= '9';
    };
    if (plain[i] == '_' && !(i > 0 && is_digit(i - 1) && is_digit(i + 1))) return std::nullopt;
  }
  std::erase(plain, '_');
  const bool negative = plain.starts_with('-');
  if (negative || plain.starts_with('+')) plain.erase(0, 1);
  double number = 0;
  const char* end = plain.data() + plain.size();
  const auto result = std::from_chars(plain.data(), end, number);
  const bool has_sign = plain.starts_with('-') || plain.find('(') != std::string::npos;
  if (plain.empty() || has_sign || result.ptr != end) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) {
    const bool tiny =
        plain.find("e-") != std::string::npos || plain.find("E-") != std::string::npos;
    number = tiny ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return negative ? -number : number;
}

}  // namespace quire::jinja
