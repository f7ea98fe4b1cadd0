// Regular expressions as expressions of a grammar.
//
// Characters, ".", classes, \d \w \s and their opposites (of ASCII, as in ECMA-262), \t \n \r \f \v \0
// \xHH \uHHHH \u{H...}, groups, alternatives, * + ? {m} {m,} {m,n} (lazy or not: it is the same
// language). "." is anything but a line's end. What no finite automaton has - backreferences, looking
// around - and \b, \p, flags and named groups are refused by name.
#ifndef QUIRE_TEXT_GRAMMAR_REGEX_GRAMMAR_H_
#define QUIRE_TEXT_GRAMMAR_REGEX_GRAMMAR_H_

#include <functional>
#include <string_view>

#include "text/grammar/grammar.h"

namespace quire {

// Where a match may begin and end in the text.
enum class RegexAnchoring {
  kWhole,   // the text is the match; ^ and $ say nothing
  kSearch,  // anywhere, unless ^ or $ says otherwise, as of "pattern" in JSON Schema
};

struct RegexOptions {
  RegexAnchoring anchoring = RegexAnchoring::kWhole;
  // How one character of a set is written. Absent: as itself.
  std::function<Grammar::Expr(const CodePoints&)> characters = {};
};

// Throws Error(kInvalidArgument), naming `source`, what is wrong and where (in bytes, from 1).
Grammar::Expr AddRegex(Grammar& grammar, std::string_view regex, std::string_view source,
                       const RegexOptions& options = {});

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_REGEX_GRAMMAR_H_
