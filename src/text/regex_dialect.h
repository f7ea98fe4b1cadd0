// Tokenizer files are written for Oniguruma (tokenizer.json) or for Rust's regex (tiktoken); we match
// with PCRE2. The three agree on most of what tokenizers use, and where they do not, a pattern is
// rewritten:
//
//   \s \S         Unicode's White_Space; PCRE2's would take U+180E too, or only ASCII
//   \d \D         Unicode's Nd
//   \p{Han}       the Script property; PCRE2's \p{Han} is Script_Extensions
//   \uXXXX \v     spelled \x{XXXX} and \x0b
//   [a&&[^b]]     (?:(?![b])[a]), as PCRE2 10.42 has no intersection of classes
//   \s+$          (?<!\s)\s+$, which finds the same but looks at a long run of spaces once, not once
//                 from each of its characters
//
// ^ and $ match at every line, as in Oniguruma's Ruby dialect; Regex compiles with that.
//
// What may mean different things and does not occur in our tokenizers (\w, \b, \h, named groups,
// flags other than (?i:), nested classes, ...) is refused.
#ifndef QUIRE_TEXT_REGEX_DIALECT_H_
#define QUIRE_TEXT_REGEX_DIALECT_H_

#include <string>
#include <string_view>

namespace quire {

// The pattern for PCRE2. Throws Error(kInvalidArgument) that begins with `where`, and names the part
// that is refused and its place.
std::string TranslateRegex(std::string_view pattern, std::string_view where);

}  // namespace quire

#endif  // QUIRE_TEXT_REGEX_DIALECT_H_
