// How byte-level tokenizers spell bytes: a printable character for each, so that any bytes are a
// string (GPT-2's table). Those that are printable in Latin-1 stand for themselves; the other 68 are,
// in order, U+0100 to U+0143: a space is U+0120, a newline U+010A.
#ifndef QUIRE_TEXT_BYTE_ALPHABET_H_
#define QUIRE_TEXT_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire {

std::string SpellBytes(std::string_view bytes);

// Null if `spelling`, which is UTF-8, has a character that stands for no byte.
std::optional<std::string> ReadSpelledBytes(std::string_view spelling);

}  // namespace quire

#endif  // QUIRE_TEXT_BYTE_ALPHABET_H_
