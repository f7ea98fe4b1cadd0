#include "text/grammar/json_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

const CodePoints kJsonEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

struct ShortEscape {
  char32_t character;
  const char* spelling;
};
constexpr ShortEscape kShortEscapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"},
                                         {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"},
                                         {'\t', "\\t"}};

}  // namespace

JsonRules::JsonRules(Grammar& grammar)
    : grammar_(grammar),
      space_(grammar.AddRule("space")),
      string_(grammar.AddRule("string")),
      character_(grammar.AddRule("character")),
      number_(grammar.AddRule("number")),
      integer_(grammar.AddRule("integer")),
      value_(grammar.AddRule("value")),
      object_(grammar.AddRule("object")),
      array_(grammar.AddRule("array")) {
  DefineScalars();
  DefineContainers();
}

Grammar::Expr JsonRules::DigitBetween(char first, char last) {
  return grammar_.Characters({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

Grammar::Expr JsonRules::Digits(int64_t min, int64_t max) {
  return grammar_.Repeat(DigitBetween('0', '9'), min, max);
}

void JsonRules::DefineScalars() {
  Grammar& g = grammar_;
  const Grammar::Expr indent = g.Repeat(g.Characters({{' ', ' '}, {'\t', '\t'}}), 0, 20);
  g.Define(space_, g.Choice({g.Empty(), g.Literal(" "),
                             g.Sequence({g.Repeat(g.Literal("\n"), 1, 2), indent})}));

  const CodePoints hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  const CodePoints not_d = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
  // D8.. to DF.. are halves of characters.
  const Grammar::Expr unicode = g.Sequence(
      {g.Literal("u"),
       g.Choice({g.Sequence({g.Characters(not_d), g.Characters(hex)}),
                 g.Sequence({g.Characters({{'d', 'd'}, {'D', 'D'}}), DigitBetween('0', '7')})}),
       g.Characters(hex), g.Characters(hex)});
  const CodePoints after_backslash = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                      {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
  const auto character = [&] {
    return g.Choice(
        {g.Characters(kJsonEscaped.Complement()),
         g.Sequence({g.Literal("\\"), g.Choice({g.Characters(after_backslash), unicode})})});
  };
  g.Define(character_, character());
  g.Define(string_,
           g.Sequence({g.Literal("\""), g.Repeat(character(), 0, std::nullopt), g.Literal("\"")}));

  const Grammar::Expr above_0 = g.Sequence({DigitBetween('1', '9'), Digits(0, 17)});
  g.Define(integer_, g.Choice({g.Literal("0"), g.Sequence({g.Optional(g.Literal("-")), above_0})}));
  const Grammar::Expr sign = g.Optional(g.Characters({{'+', '+'}, {'-', '-'}}));
  g.Define(number_, g.Sequence({g.Optional(g.Literal("-")), g.Choice({g.Literal("0"), above_0}),
                                g.Optional(g.Sequence({g.Literal("."), Digits(1, 16)})),
                                g.Optional(g.Sequence({g.Characters({{'e', 'e'}, {'E', 'E'}}), sign,
                                                       Digits(1, 2)}))}));
}

void JsonRules::DefineContainers() {
  Grammar& g = grammar_;
  g.Define(value_, g.Choice({AnyObject(), AnyArray(), String(), Number(), g.Literal("true"),
                             g.Literal("false"), g.Literal("null")}));
  const auto list = [&](const char* open, Grammar::Expr part, const char* close) {
    const Grammar::Expr more =
        g.Repeat(g.Sequence({g.Literal(","), Space(), part}), 0, std::nullopt);
    return g.Sequence({g.Literal(open), Space(),
                       g.Choice({g.Literal(close), g.Sequence({part, more, g.Literal(close)})})});
  };
  g.Define(array_, list("[", g.Sequence({AnyValue(), Space()}), "]"));
  g.Define(object_,
           list("{", g.Sequence({String(), g.Literal(":"), Space(), AnyValue(), Space()}), "}"));
}

Grammar::Expr JsonRules::CharacterOf(const CodePoints& set) {
  std::vector<Grammar::Expr> ways;
  const CodePoints plain = set.Without(kJsonEscaped);
  if (!plain.empty()) ways.push_back(grammar_.Characters(plain));
  for (char32_t c = 0; c <= '\\'; ++c) {
    if (!kJsonEscaped.Contains(c) || !set.Contains(c)) continue;
    const auto* const found = std::ranges::find(kShortEscapes, c, &ShortEscape::character);
    ways.push_back(grammar_.Literal(found != std::end(kShortEscapes)
                                        ? found->spelling
                                        : fmt::format("\\u{:04x}", static_cast<uint32_t>(c))));
  }
  return grammar_.Choice(std::move(ways));
}

Grammar::Expr JsonRules::StringExcept(std::span<const std::string> names) {
  // A name that would be escaped is none that can be written here.
  std::vector<std::u32string> plain;
  for (const std::string& name : names) {
    std::u32string characters;
    for (std::string_view rest = name; !rest.empty();) {
      const Utf8Step step = ReadUtf8(rest);
      characters.push_back(step.character);
      rest.remove_prefix(step.length);
    }
    if (std::ranges::none_of(characters, [](char32_t c) { return kJsonEscaped.Contains(c); })) {
      plain.push_back(std::move(characters));
    }
  }
  std::ranges::sort(plain);
  const Grammar::Expr any =
      grammar_.Repeat(grammar_.Characters(kJsonEscaped.Complement()), 0, std::nullopt);
  // What may follow the first `depth` characters, which names [begin, end) share.
  const auto behind = [&](const auto& self, size_t begin, size_t end,
                          size_t depth) -> Grammar::Expr {
    Require(depth <= kMaxGrammarDepth,
            "properties: expected names of at most {} characters beside additionalProperties",
            kMaxGrammarDepth);
    std::vector<Grammar::Expr> ways;
    if (begin < end && plain[begin].size() == depth) {
      while (begin < end && plain[begin].size() == depth) ++begin;
    } else {
      ways.push_back(grammar_.Empty());
    }
    std::vector<CodePointRange> taken;
    while (begin < end) {
      const char32_t c = plain[begin][depth];
      size_t next = begin;
      while (next < end && plain[next][depth] == c) ++next;
      taken.push_back({c, c});
      ways.push_back(
          grammar_.Sequence({grammar_.Characters({{c, c}}), self(self, begin, next, depth + 1)}));
      begin = next;
    }
    CodePoints names_go_on;
    names_go_on.Add(taken);
    const CodePoints others = kJsonEscaped.Complement().Without(names_go_on);
    ways.push_back(grammar_.Sequence({grammar_.Characters(others), any}));
    return grammar_.Choice(std::move(ways));
  };
  return grammar_.Sequence(
      {grammar_.Literal("\""), behind(behind, 0, plain.size(), 0), grammar_.Literal("\"")});
}

// ---- Numbers within bounds ----

// Numbers of as many digits as both have.
Grammar::Expr JsonRules::SameLength(const std::string& low, const std::string& high) {
  const auto length = static_cast<int64_t>(low.size());
  if (low == std::string(low.size(), '0') && high == std::string(high.size(), '9')) {
    return Digits(length, length);
  }
  const std::string low_rest = low.substr(1), high_rest = high.substr(1);
  if (low[0] == high[0]) {
    return grammar_.Sequence({grammar_.Literal(low.substr(0, 1)), SameLength(low_rest, high_rest)});
  }
  std::vector<Grammar::Expr> ways;
  ways.push_back(grammar_.Sequence({grammar_.Literal(low.substr(0, 1)),
                                    SameLength(low_rest, std::string(low_rest.size(), '9'))}));
  if (high[0] - low[0] > 1) {
    ways.push_back(grammar_.Sequence(
        {DigitBetween(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
         Digits(length - 1, length - 1)}));
  }
  ways.push_back(grammar_.Sequence({grammar_.Literal(high.substr(0, 1)),
                                    SameLength(std::string(high_rest.size(), '0'), high_rest)}));
  return grammar_.Choice(std::move(ways));
}

Grammar::Expr JsonRules::Positive(int64_t low, int64_t high) {
  std::vector<Grammar::Expr> ways;
  for (int64_t first = low; first <= high;) {
    const std::string digits = std::to_string(first);
    const int64_t longest = std::stoll(std::string(digits.size(), '9'));
    const int64_t last = std::min(high, longest);
    ways.push_back(SameLength(digits, std::to_string(last)));
    first = last + 1;
  }
  return grammar_.Choice(std::move(ways));
}

Grammar::Expr JsonRules::NonNegative(int64_t low, int64_t high) {
  std::vector<Grammar::Expr> ways;
  if (low == 0) ways.push_back(grammar_.Literal("0"));
  if (high > 0) ways.push_back(Positive(std::max<int64_t>(low, 1), high));
  return grammar_.Choice(std::move(ways));
}

Grammar::Expr JsonRules::IntegerBetween(int64_t low, int64_t high) {
  low = std::max(low, -kMaxJsonInteger);
  high = std::min(high, kMaxJsonInteger);
  std::vector<Grammar::Expr> ways;
  if (low < 0 && low <= high) {
    ways.push_back(
        grammar_.Sequence({grammar_.Literal("-"), Positive(std::max<int64_t>(1, -high), -low)}));
  }
  if (high >= 0 && low <= high) ways.push_back(NonNegative(std::max<int64_t>(low, 0), high));
  return grammar_.Choice(std::move(ways));
}

Grammar::Expr JsonRules::FractionBetween(int64_t low, int64_t high) {
  low = std::max(low, -kMaxJsonInteger);
  high = std::min(high, kMaxJsonInteger);
  // It ends with another digit than 0, so it is strictly between two integers, unless 18 digits stand
  // before it: then a double has no room for it, and rounds to one of the two.
  const Grammar::Expr fraction =
      grammar_.Sequence({grammar_.Literal("."), Digits(0, 5), DigitBetween('1', '9')});
  std::vector<Grammar::Expr> ways;
  const int64_t below = std::max<int64_t>(0, -high);  // "-below.5" is the highest below 0
  if (low < 0 && below <= -low - 1) {
    ways.push_back(
        grammar_.Sequence({grammar_.Literal("-"), NonNegative(below, -low - 1), fraction}));
  }
  const int64_t above = std::max<int64_t>(0, low);
  if (high > 0 && above <= high - 1) {
    ways.push_back(grammar_.Sequence({NonNegative(above, high - 1), fraction}));
  }
  return grammar_.Choice(std::move(ways));
}

}  // namespace quire
