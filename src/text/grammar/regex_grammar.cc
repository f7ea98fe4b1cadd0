#include "text/grammar/regex_grammar.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxRegexRepeats = 100'000;

const CodePoints kRegexDigits = {{'0', '9'}};
const CodePoints kRegexWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kRegexSpace = {{'\t', '\r'}, {' ', ' '}};
const CodePoints kRegexLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class RegexReader {
 public:
  RegexReader(Grammar& grammar, std::string_view regex, std::string_view source,
              const RegexOptions& options)
      : grammar_(grammar), regex_(regex), source_(source), options_(options) {}

  Grammar::Expr Read() {
    const Grammar::Expr whole = ReadAlternatives(0, Place::kTop);
    if (!AtEnd()) Refuse("no \")\" without a \"(\"");
    return whole;
  }

 private:
  enum class Place { kTop, kGroup };

  bool AtEnd() const { return at_ == regex_.size(); }
  char Peek() const { return AtEnd() ? '\0' : regex_[at_]; }
  bool Take(char c) {
    if (AtEnd() || regex_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeText(std::string_view text) {
    if (!regex_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void Refuse(std::string_view expected) const {
    throw Error(ErrorCode::kInvalidArgument, "{}: at byte {}: expected {}", source_, at_ + 1,
                expected);
  }

  Grammar::Expr Characters(const CodePoints& set) {
    if (set.empty()) Refuse("a class that has a character");
    return options_.characters ? options_.characters(set) : grammar_.Characters(set);
  }
  // What an open end of the text may be.
  Grammar::Expr Anything() {
    return grammar_.Repeat(Characters(CodePoints::All()), 0, std::nullopt);
  }

  Grammar::Expr ReadAlternatives(int depth, Place place) {
    if (depth > kMaxGrammarDepth) {
      Refuse(fmt::format("groups at most {} deep", kMaxGrammarDepth));
    }
    std::vector<Grammar::Expr> alternatives;
    do {
      alternatives.push_back(ReadSequence(depth, place));
    } while (Take('|'));
    return grammar_.Choice(std::move(alternatives));
  }

  Grammar::Expr ReadSequence(int depth, Place place) {
    const bool searches = place == Place::kTop && options_.anchoring == RegexAnchoring::kSearch;
    std::vector<Grammar::Expr> parts;
    bool begins = false, ends = false;
    if (place == Place::kTop) begins = Take('^');
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (place == Place::kTop && Peek() == '$' &&
          (at_ + 1 == regex_.size() || regex_[at_ + 1] == '|')) {
        ++at_;
        ends = true;
        break;
      }
      parts.push_back(ReadQuantified(depth));
    }
    if (searches && !begins) parts.insert(parts.begin(), Anything());
    if (searches && !ends) parts.push_back(Anything());
    if (parts.empty()) return grammar_.Empty();
    return grammar_.Sequence(std::move(parts));
  }

  Grammar::Expr ReadQuantified(int depth) {
    Grammar::Expr part = ReadAtom(depth);
    for (bool first = true;; first = false) {
      int64_t min = 0;
      std::optional<int64_t> max;
      const size_t begin = at_;
      if (Take('*')) {
      } else if (Take('+')) {
        min = 1;
      } else if (Take('?')) {
        max = 1;
      } else if (Peek() == '{' && ReadCounts(min, max)) {
      } else {
        return part;
      }
      if (!first) {
        at_ = begin;
        Refuse("one quantifier");
      }
      Take('?');  // lazy: the same language
      part = grammar_.Repeat(part, min, max);
    }
  }

  std::optional<int64_t> ReadNumber() {
    std::optional<int64_t> number;
    while (!AtEnd() && Peek() >= '0' && Peek() <= '9') {
      number = std::min<int64_t>(number.value_or(0) * 10 + (Peek() - '0'), kMaxRegexRepeats + 1);
      ++at_;
    }
    return number;
  }

  // False, and nothing read, if it is a brace like any other character.
  bool ReadCounts(int64_t& min, std::optional<int64_t>& max) {
    const size_t begin = at_;
    Take('{');
    const std::optional<int64_t> low = ReadNumber();
    const bool has_comma = Take(',');
    const std::optional<int64_t> high = has_comma ? ReadNumber() : low;
    if ((!low && !high) || !Take('}')) {
      at_ = begin;
      return false;
    }
    min = low.value_or(0);
    max = high;
    if (min > kMaxRegexRepeats || max.value_or(0) > kMaxRegexRepeats || max.value_or(min) < min) {
      at_ = begin;
      Refuse(fmt::format("counts that ascend, up to {}", kMaxRegexRepeats));
    }
    return true;
  }

  Grammar::Expr ReadAtom(int depth) {
    const char c = Peek();
    switch (c) {
      case '(':
        return ReadGroup(depth);
      case '[':
        ++at_;
        return Characters(ReadClass());
      case '.':
        ++at_;
        return Characters(kRegexLineEnds.Complement());
      case '\\':
        return Characters(ReadEscape(false));
      case '*':
      case '+':
      case '?':
        Refuse("something to repeat");
      case '^':
      case '$':
        Refuse("^ and $ only where the expression, or an alternative of it, begins and ends");
      default:
        return Characters(ReadCharacter());
    }
  }

  Grammar::Expr ReadGroup(int depth) {
    Take('(');
    if (Take('?')) {
      for (const std::string_view around : {"=", "!", "<=", "<!"}) {
        if (TakeText(around)) Refuse("no lookahead or lookbehind (not supported)");
      }
      if (TakeText("P<") || TakeText("<")) {
        while (!AtEnd() && Peek() != '>') ++at_;
        if (!Take('>')) Refuse("\">\" behind a group's name");
      } else if (!Take(':')) {
        Refuse("\"?:\" or a name (flags are not supported)");
      }
    }
    const Grammar::Expr inside = ReadAlternatives(depth + 1, Place::kGroup);
    if (!Take(')')) Refuse("\")\"");
    return inside;
  }

  CodePoints ReadCharacter() {
    const Utf8Step step = ReadUtf8(regex_.substr(at_));
    if (step.kind != Utf8Step::Kind::kCharacter) Refuse("UTF-8");
    at_ += step.length;
    return {{step.character, step.character}};
  }

  char32_t ReadHex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = HexDigit(Peek());
      if (digit < 0) Refuse("a hexadecimal digit");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  char32_t ReadUnicode() {
    if (!Take('{')) return ReadHex(4);
    char32_t value = 0;
    for (int i = 0; i < 6 && Peek() != '}'; ++i) value = value * 16 + ReadHex(1);
    if (!Take('}') || value > kLastCodePoint) Refuse("a character of Unicode, and \"}\"");
    return value;
  }

  CodePoints ReadEscape(bool in_class) {
    Take('\\');
    if (AtEnd()) Refuse("a character behind \"\\\"");
    const char c = regex_[at_++];
    const auto one = [](char32_t character) { return CodePoints{{character, character}}; };
    switch (c) {
      case 'd':
        return kRegexDigits;
      case 'D':
        return kRegexDigits.Complement();
      case 'w':
        return kRegexWord;
      case 'W':
        return kRegexWord.Complement();
      case 's':
        return kRegexSpace;
      case 'S':
        return kRegexSpace.Complement();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(ReadHex(2));
      case 'u':
        return one(ReadUnicode());
      case '0':
        return one(0);
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    const bool is_letter_or_digit = kRegexWord.Contains(static_cast<unsigned char>(c)) && c != '_';
    if (is_letter_or_digit) {
      --at_;
      Refuse(fmt::format("an escape that is supported, got \\{}", c));
    }
    --at_;
    return ReadCharacter();
  }

  CodePoints ReadClass() {
    const bool is_negative = Take('^');
    std::vector<CodePointRange> ranges;
    for (bool first = true;; first = false) {
      if (AtEnd()) Refuse("\"]\"");
      if (!first && Take(']')) break;
      if (first && Take(']')) break;  // an empty class, as in ECMA-262
      const CodePoints from = Peek() == '\\' ? ReadEscape(true) : ReadCharacter();
      const bool is_range = Peek() == '-' && at_ + 1 < regex_.size() && regex_[at_ + 1] != ']';
      if (!is_range) {
        ranges.insert(ranges.end(), from.ranges().begin(), from.ranges().end());
        continue;
      }
      ++at_;
      const CodePoints to = Peek() == '\\' ? ReadEscape(true) : ReadCharacter();
      const auto is_one = [](const CodePoints& points) {
        return points.ranges().size() == 1 && points.ranges()[0].first == points.ranges()[0].last;
      };
      if (!is_one(from) || !is_one(to) || from.ranges()[0].first > to.ranges()[0].first) {
        Refuse("a range that ascends");
      }
      ranges.push_back({from.ranges()[0].first, to.ranges()[0].first});
    }
    CodePoints set;
    set.Add(ranges);
    return is_negative ? set.Complement() : set;
  }

  Grammar& grammar_;
  std::string_view regex_;
  std::string_view source_;
  const RegexOptions& options_;
  size_t at_ = 0;
};

}  // namespace

Grammar::Expr AddRegex(Grammar& grammar, std::string_view regex, std::string_view source,
                       const RegexOptions& options) {
  return RegexReader(grammar, regex, source, options).Read();
}

}  // namespace quire
