#include "text/grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxEbnfRepeats = 100'000;

bool IsRuleNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

class EbnfReader {
 public:
  EbnfReader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Grammar Read() {
    SkipSpace();
    while (!AtEnd()) ReadRule();
    const auto root = rules_.find("root");
    if (root == rules_.end()) Refuse("a rule \"root\"");
    grammar_.SetRoot(root->second);
    for (const Grammar::RuleText& rule : grammar_.rules()) {
      Require(rule.expr.has_value(), "{}: rule {}: expected a definition, got none", source_,
              rule.name);
    }
    return std::move(grammar_);
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  [[noreturn]] void Refuse(std::string_view expected) const {
    const auto line = std::ranges::count(text_.substr(0, at_), '\n') + 1;
    throw Error(ErrorCode::kInvalidArgument, "{}: line {}: expected {}", source_, line, expected);
  }
  void SkipSpace() {
    while (!AtEnd()) {
      if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') ++at_;
      } else if (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string ReadName() {
    const size_t begin = at_;
    while (IsRuleNameCharacter(Peek())) ++at_;
    if (at_ == begin) Refuse("a rule's name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Grammar::Rule RuleOf(const std::string& name) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    return rules_.emplace(name, grammar_.AddRule(name)).first->second;
  }

  void ReadRule() {
    const std::string name = ReadName();
    SkipSpace();
    if (!Take("::=")) Refuse("\"::=\" behind a rule's name");
    const Grammar::Rule rule = RuleOf(name);
    if (grammar_.rules()[static_cast<size_t>(rule)].expr) {
      Refuse(fmt::format("rule {} once", name));
    }
    SkipSpace();
    grammar_.Define(rule, ReadAlternatives(0));
  }

  Grammar::Expr ReadAlternatives(int depth) {
    if (depth > kMaxGrammarDepth) Refuse(fmt::format("groups at most {} deep", kMaxGrammarDepth));
    std::vector<Grammar::Expr> alternatives;
    do {
      SkipSpace();
      alternatives.push_back(ReadSequence(depth));
    } while (Take("|"));
    return grammar_.Choice(std::move(alternatives));
  }

  // Whether a rule begins here: a name, and "::=".
  bool AtRule() const {
    size_t at = at_;
    while (at < text_.size() && IsRuleNameCharacter(text_[at])) ++at;
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t')) ++at;
    return text_.substr(at).starts_with("::=");
  }

  Grammar::Expr ReadSequence(int depth) {
    std::vector<Grammar::Expr> parts;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      if (IsRuleNameCharacter(Peek()) && Peek() != '.' && AtRule()) break;
      parts.push_back(ReadRepeated(depth));
      SkipSpace();
    }
    if (parts.empty()) return grammar_.Empty();
    return grammar_.Sequence(std::move(parts));
  }

  Grammar::Expr ReadRepeated(int depth) {
    Grammar::Expr part = ReadAtom(depth);
    while (true) {
      SkipSpace();
      if (Take("*")) {
        part = grammar_.Repeat(part, 0, std::nullopt);
      } else if (Take("+")) {
        part = grammar_.Repeat(part, 1, std::nullopt);
      } else if (Take("?")) {
        part = grammar_.Repeat(part, 0, 1);
      } else if (Take("{")) {
        part = ReadCounts(part);
      } else {
        return part;
      }
    }
  }

  std::optional<int64_t> ReadNumber() {
    SkipSpace();
    std::optional<int64_t> number;
    while (Peek() >= '0' && Peek() <= '9') {
      number = std::min<int64_t>(number.value_or(0) * 10 + (Peek() - '0'), kMaxEbnfRepeats + 1);
      ++at_;
    }
    SkipSpace();
    return number;
  }

  Grammar::Expr ReadCounts(Grammar::Expr part) {
    const std::optional<int64_t> min = ReadNumber();
    const bool has_comma = Take(",");
    const std::optional<int64_t> max = has_comma ? ReadNumber() : min;
    const int64_t low = min.value_or(0);
    if ((!min && !max) || low > kMaxEbnfRepeats || max.value_or(0) > kMaxEbnfRepeats ||
        max.value_or(low) < low || !Take("}")) {
      Refuse(fmt::format("{{m}}, {{m,}} or {{m,n}}, counts that ascend up to {}", kMaxEbnfRepeats));
    }
    return grammar_.Repeat(part, low, max);
  }

  Grammar::Expr ReadAtom(int depth) {
    if (Take("(")) {
      const Grammar::Expr inside = ReadAlternatives(depth + 1);
      SkipSpace();
      if (!Take(")")) Refuse("\")\"");
      return inside;
    }
    if (Take("\"")) return ReadLiteral();
    if (Take("[")) return grammar_.Characters(ReadClass());
    if (Take(".")) return grammar_.Characters(CodePoints::All());
    if (!IsRuleNameCharacter(Peek())) Refuse("a literal, a class, a group or a rule's name");
    return grammar_.Call(RuleOf(ReadName()));
  }

  char32_t ReadHex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const int digit = HexDigit(Peek());
      if (digit < 0) Refuse("a hexadecimal digit");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      Refuse("a character of Unicode");
    }
    return value;
  }

  char32_t ReadCharacter() {
    if (AtEnd()) Refuse("the end of a literal or class");
    if (!Take("\\")) {
      const Utf8Step step = ReadUtf8(text_.substr(at_));
      if (step.kind != Utf8Step::Kind::kCharacter) Refuse("UTF-8");
      at_ += step.length;
      return step.character;
    }
    const char c = Peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return ReadHex(2);
      case 'u':
        return ReadHex(4);
      case 'U':
        return ReadHex(8);
      case '\\':
      case '"':
      case '\'':
      case ']':
      case '[':
      case '-':
      case '^':
        return static_cast<char32_t>(c);
      default:
        --at_;
        Refuse("an escape: one of n r t x u U \\ \" ' [ ] - ^");
    }
  }

  Grammar::Expr ReadLiteral() {
    std::string bytes;
    while (!Take("\"")) AppendUtf8(ReadCharacter(), bytes);
    return grammar_.Literal(bytes);
  }

  CodePoints ReadClass() {
    const bool is_negative = Take("^");
    std::vector<CodePointRange> ranges;
    while (!Take("]")) {
      const char32_t from = ReadCharacter();
      const bool is_range = Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) ++at_;
      const char32_t to = is_range ? ReadCharacter() : from;
      if (to < from) Refuse("a range that ascends");
      ranges.push_back({from, to});
    }
    CodePoints set;
    set.Add(ranges);
    if (is_negative) set = set.Complement();
    if (set.empty()) Refuse("a class that has a character");
    return set;
  }

  std::string_view text_;
  std::string_view source_;
  size_t at_ = 0;
  Grammar grammar_;
  std::map<std::string, Grammar::Rule> rules_;
};

}  // namespace

Grammar ParseEbnf(std::string_view text, std::string_view source) {
  return EbnfReader(text, source).Read();
}

}  // namespace quire
