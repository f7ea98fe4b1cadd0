#include "text/regex_dialect.h"

#include <array>
#include <cstddef>

#include "base/error.h"
#include "io/json.h"

namespace quire {
namespace {

// The inside of a class that is Unicode's White_Space: the same list as IsWhiteSpace's.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Every other \p{name} is taken for a script, and PCRE2 knows whether there is one.
constexpr std::array<std::string_view, 38> kGeneralCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn", "Any"};

bool IsAsciiPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string Translate() {
    if (pattern_ == R"(\s+$)") return fmt::format("(?<![{0}])[{0}]+$", kWhiteSpace);
    while (at_ < pattern_.size()) TranslateOne();
    return std::move(out_);
  }

 private:
  bool Sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  bool Take(std::string_view text) {
    if (!Sees(text)) return false;
    at_ += text.size();
    return true;
  }

  [[noreturn]] void Refuse(std::string_view what) const {
    throw Error(ErrorCode::kInvalidArgument, "{}: {} at byte {} of the pattern {} is not supported",
                where_, what, at_, QuoteForMessage(pattern_));
  }

  void Copy(size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }

  void TranslateOne() {
    if (Take("[")) {
      out_ += Class();
    } else if (Sees("\\")) {
      out_ += EscapeOutsideClass();
    } else if (Sees("(")) {
      Group();
    } else if (Sees("{,") || Sees("}+")) {
      Refuse(QuoteForMessage(pattern_.substr(at_, 2)));
    } else {
      Copy(1);
    }
  }

  void Group() {
    if (Sees("(*")) Refuse("\"(*\"");
    if (!Sees("(?")) return Copy(1);
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Sees(known)) return Copy(known.size());
    }
    Refuse(QuoteForMessage(pattern_.substr(at_, 3)));
  }

  std::string EscapeOutsideClass() {
    if (Take(R"(\s)")) return fmt::format("[{}]", kWhiteSpace);
    if (Take(R"(\S)")) return fmt::format("[^{}]", kWhiteSpace);
    for (const std::string_view anchor : {R"(\A)", R"(\z)"}) {
      if (Take(anchor)) return std::string(anchor);
    }
    return Escape();
  }

  std::string EscapeInClass() {
    if (Take(R"(\s)")) return std::string(kWhiteSpace);
    return Escape();
  }

  // Those that mean one thing inside and outside of a class.
  std::string Escape() {
    if (Take(R"(\d)")) return R"(\p{Nd})";
    if (Take(R"(\D)")) return R"(\P{Nd})";
    if (Take(R"(\v)")) return R"(\x0b)";
    if (Take(R"(\u)")) return fmt::format(R"(\x{{{}}})", Hex(4));
    if (Take(R"(\x{)")) return fmt::format(R"(\x{{{}}})", Until('}'));
    if (Sees(R"(\p{)") || Sees(R"(\P{)")) return Property();
    for (const std::string_view control : {R"(\r)", R"(\n)", R"(\t)", R"(\f)", R"(\a)", R"(\e)"}) {
      if (Take(control)) return std::string(control);
    }
    const std::string_view escape = pattern_.substr(at_, 2);
    if (escape.size() < 2 || !IsAsciiPunctuation(escape[1])) Refuse(QuoteForMessage(escape));
    at_ += 2;
    return std::string(escape);
  }

  std::string_view Hex(size_t length) {
    const std::string_view digits = pattern_.substr(at_, length);
    if (digits.size() < length ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      Refuse("a code that is not hexadecimal");
    }
    at_ += length;
    return digits;
  }

  std::string_view Until(char end) {
    const size_t length = pattern_.substr(at_).find(end);
    if (length == std::string_view::npos) Refuse("an open brace");
    const std::string_view text = pattern_.substr(at_, length);
    at_ += length + 1;
    return text;
  }

  std::string Property() {
    const char letter = pattern_[at_ + 1];
    at_ += 3;
    std::string_view name = Until('}');
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const char kind = (letter == 'P') == negated ? 'p' : 'P';
    for (const std::string_view category : kGeneralCategories) {
      if (name == category) return fmt::format(R"(\{}{{{}}})", kind, name);
    }
    return fmt::format(R"(\{}{{sc:{}}})", kind, name);
  }

  // Behind the bracket that opens it.
  std::string Class() {
    const bool negated = Take("^");
    const std::string items = ClassItems();
    if (Take("]")) return fmt::format("[{}{}]", negated ? "^" : "", items);
    if (negated) Refuse("an intersection in a negated class");
    Take("&&");
    if (!Take("[")) Refuse("an intersection with what is not a class");
    const char lookahead = Take("^") ? '!' : '=';
    const std::string others = ClassItems();
    if (!Take("]]")) Refuse("an intersection of more than two classes");
    return fmt::format("(?:(?{}[{}])[{}])", lookahead, others, items);
  }

  // Up to the bracket that closes the class, or to an intersection.
  std::string ClassItems() {
    std::string items;
    while (!Sees("]") && !Sees("&&")) {
      if (at_ == pattern_.size()) Refuse("a class without an end");
      if (Sees("[")) Refuse("a class in a class");
      if (Sees("\\")) {
        items += EscapeInClass();
      } else {
        items += pattern_[at_++];
      }
    }
    if (items.empty()) Refuse("an empty class");
    return items;
  }

  std::string_view pattern_;
  std::string_view where_;
  size_t at_ = 0;
  std::string out_ = {};
};

}  // namespace

std::string TranslateRegex(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Translate();
}

}  // namespace quire
