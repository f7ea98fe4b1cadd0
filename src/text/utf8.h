// Characters: UTF-8, what to make of bytes that are not it, and digits that spell one.
#ifndef QUIRE_TEXT_UTF8_H_
#define QUIRE_TEXT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

inline constexpr std::string_view kReplacementUtf8 = "\xef\xbf\xbd";  // U+FFFD

// What stands at the beginning of some bytes.
struct Utf8Step {
  enum class Kind {
    kCharacter,  // a whole character
    kIllFormed,  // bytes that are part of no character, whatever follows
    kCut,        // the beginning of a character, where the bytes end
  };
  Kind kind = Kind::kCharacter;
  // In bytes, at least 1. Of what is ill-formed, the "maximal subpart": what Unicode recommends to
  // replace by one U+FFFD, and Python and Rust do.
  size_t length = 0;
  char32_t character = 0;  // of kCharacter
};

Utf8Step ReadUtf8(std::string_view bytes);  // `bytes` is not empty

bool IsUtf8(std::string_view bytes);

// `bytes` with U+FFFD for every ill-formed part, a cut character at the end included: what Python's
// bytes.decode(errors="replace") gives.
std::string ReplaceIllFormed(std::string_view bytes);

// Takes from the front of `bytes` all that more bytes cannot change and returns it as UTF-8. What
// stays is the beginning of one character, or nothing.
std::string TakeSettled(std::string& bytes);

void AppendUtf8(char32_t character, std::string& out);

// The value of a hexadecimal digit; -1 of anything else.
int HexDigit(char c);

// Unicode's White_Space, which regular expressions call \s.
bool IsWhiteSpace(char32_t character);

}  // namespace quire

#endif  // QUIRE_TEXT_UTF8_H_
