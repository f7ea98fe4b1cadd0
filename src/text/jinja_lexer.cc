#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "io/json.h"
#include "text/jinja_literals.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace quire::jinja {
namespace {

// With \n for every line end, and without the last one.
std::string NormalizeLines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool is_return = source[i] == '\r';
    if (is_return && i + 1 < source.size() && source[i + 1] == '\n') ++i;
    out += is_return ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameCharacter(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name) : source_(source), name_(name) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) LexText();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return source_.substr(at_); }
  bool Sees(std::string_view text) const { return Rest().starts_with(text); }

  // Moves on, counting lines.
  void Skip(size_t bytes) {
    const std::string_view skipped = source_.substr(at_, bytes);
    line_ += static_cast<int>(std::count(skipped.begin(), skipped.end(), '\n'));
    at_ += skipped.size();
    ends_line_ = skipped.ends_with('\n');
  }
  void SkipSpace() { Skip(Rest().size() - StripLeft(Rest()).size()); }

  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({.kind = kind, .text = std::string(text), .literal = {}, .line = line_});
  }

  [[noreturn]] void Refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, "{}: line {}: {}", name_, line_, what);
  }

  // The text up to the next tag, and the tag.
  void LexText() {
    size_t tag = at_;
    do {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == source_.size())
        return AddData(Rest(), Rest().size());
      ++tag;
    } while (source_[tag] != '{' && source_[tag] != '%' && source_[tag] != '#');
    --tag;
    const char kind = source_[tag + 1];
    const std::string_view text = source_.substr(at_, tag - at_);
    AddData(Stripped(text, SignAt(tag + 2), kind), text.size());
    if (kind == '%' && LexRaw()) return;
    const size_t begin = SignAt(tag + 2) == ' ' ? 2 : 3;
    if (kind == '#') return SkipComment(begin);
    Add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    Skip(begin);
    LexTag(kind == '{' ? "}}" : "%}");
  }

  void AddData(std::string_view text, size_t bytes) {
    if (!text.empty()) Add(TokenKind::kData, text);
    if (bytes > 0) Skip(bytes);
  }

  // The whitespace control behind the opening of a tag: '-', '+' or ' ' for none.
  char SignAt(size_t at) const {
    const char c = at < source_.size() ? source_[at] : ' ';
    return c == '-' || c == '+' ? c : ' ';
  }

  // `text` without the whitespace that a tag of that kind behind it takes away.
  std::string_view Stripped(std::string_view text, char sign, char kind) const {
    if (sign == '-') return StripRight(text);
    if (sign == '+' || kind == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    if (line == 0 && !ends_line_) return text;
    return StripLeft(text.substr(line)).empty() ? text.substr(0, line) : text;
  }

  // Behind `end`, with the whitespace that its sign takes away: -%} all, %} a newline.
  void SkipEnd(std::string_view end) {
    const char sign = Sees("-") || Sees("+") ? Rest()[0] : ' ';
    size_t bytes = end.size() + (sign == ' ' ? 0 : 1);
    if (sign == '-') {
      bytes += Rest().size() - bytes - StripLeft(Rest().substr(bytes)).size();
    } else if (sign == ' ' && end != "}}" && Rest().substr(bytes).starts_with('\n')) {
      ++bytes;
    }
    Skip(bytes);
  }

  void SkipComment(size_t begin) {
    const size_t end = source_.find("#}", at_ + begin);
    if (end == std::string_view::npos) Refuse("a comment that does not end");
    const bool is_signed = end > at_ + begin && SignAt(end - 1) != ' ';
    Skip(end - at_ - (is_signed ? 1 : 0));
    SkipEnd("#}");
  }

  // The bytes of a tag {% word %}, {%- word -%} and so on at the beginning of `text`, up to its end
  // sign; absent if it is another.
  static std::optional<size_t> WordTag(std::string_view text, std::string_view word) {
    if (!text.starts_with("{%")) return std::nullopt;
    std::string_view rest = text.substr(2);
    if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
    rest = StripLeft(rest);
    if (!rest.starts_with(word)) return std::nullopt;
    rest = StripLeft(rest.substr(word.size()));
    const bool ends = rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}");
    return ends ? std::optional(text.size() - rest.size()) : std::nullopt;
  }

  // A raw block, if there is one here.
  bool LexRaw() {
    const std::optional<size_t> begin = WordTag(Rest(), "raw");
    if (!begin || source_[at_ + *begin] == '+') return false;
    Skip(*begin);
    const bool strips = Sees("-");
    Skip(strips ? 3 : 2);
    if (strips) SkipSpace();
    for (size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      const std::optional<size_t> end = WordTag(source_.substr(tag), "endraw");
      if (!end) continue;
      const std::string_view text = source_.substr(at_, tag - at_);
      AddData(Stripped(text, SignAt(tag + 2), '%'), text.size());
      Skip(*end);
      SkipEnd("%}");
      return true;
    }
    Refuse("a raw block that does not end");
  }

  void LexTag(std::string_view end) {
    while (true) {
      if (at_ == source_.size()) Refuse(fmt::format("a tag that does not end with {}", end));
      if (open_.empty() && SeesEnd(end)) break;
      LexToken();
    }
    Add(end == "}}" ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "");
    SkipEnd(end);
  }

  bool SeesEnd(std::string_view end) const {
    if (Sees(end)) return true;
    const bool is_signed = Sees("-") || (Sees("+") && end == "%}");
    return is_signed && Rest().substr(1).starts_with(end);
  }

  void LexToken() {
    const size_t space = Rest().size() - StripLeft(Rest()).size();
    const char c = Rest()[0];
    if (space > 0) return Skip(space);
    if (IsDigit(c)) return LexNumber();
    if (IsNameCharacter(c)) return LexName();
    if (c == '\'' || c == '"') return LexString(c);
    LexOperator();
  }

  void LexName() {
    size_t bytes = 0;
    while (bytes < Rest().size() && IsNameCharacter(Rest()[bytes])) ++bytes;
    Add(TokenKind::kName, Rest().substr(0, bytes));
    Skip(bytes);
  }

  void LexNumber() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.1 has no float
    const NumberLiteral number = ReadNumber(Rest(), after_dot);
    if (number.bytes == 0) Refuse("an integer has more than 64 bits");
    Add(TokenKind::kLiteral, Rest().substr(0, number.bytes));
    tokens_.back().literal = number.value;
    Skip(number.bytes);
  }

  void LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) Refuse("a string that does not end");
    const std::string_view text = source_.substr(at_ + 1, end - at_ - 1);
    const StringLiteral literal = ReadEscapes(text);
    if (!literal.error.empty()) Refuse(literal.error);
    Add(TokenKind::kLiteral, source_.substr(at_, end + 1 - at_));
    tokens_.back().literal = Value::Literal(literal.text);
    Skip(end + 1 - at_);
  }

  void LexOperator() {
    constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingle = "+-*/%~[](){}<>=.:|,;";
    const auto* pair =
        std::find_if(std::begin(kPairs), std::end(kPairs), [&](auto p) { return Sees(p); });
    const size_t bytes = pair != std::end(kPairs) ? 2 : 1;
    if (bytes == 1 && kSingle.find(Rest()[0]) == std::string_view::npos) RefuseCharacter();
    const std::string_view text = Rest().substr(0, bytes);
    Balance(text[0]);
    Add(TokenKind::kOperator, text);
    Skip(bytes);
  }

  [[noreturn]] void RefuseCharacter() const {
    size_t at = at_;
    (void)NextCodePoint(source_, &at);
    Refuse(fmt::format("unexpected {}", QuoteForMessage(source_.substr(at_, at - at_))));
  }

  // Inside of brackets, }} and %} do not end a tag.
  void Balance(char c) {
    if (c == '(') open_ += ')';
    if (c == '[') open_ += ']';
    if (c == '{') open_ += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open_.empty() || open_.back() != c) Refuse(fmt::format("unexpected '{}'", c));
    open_.pop_back();
  }

  std::string_view source_;
  std::string_view name_;
  size_t at_ = 0;
  int line_ = 1;
  bool ends_line_ = true;  // what was skipped last ended with a newline
  std::string open_;       // the brackets that have to close, outermost first
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source, std::string_view name) {
  Require(IsUtf8(source), "{}: not UTF-8", name);
  const std::string normal = NormalizeLines(source);
  return Lexer(normal, name).Run();
}

}  // namespace quire::jinja
