// What Python's str knows about text: templates are written for it. Every string here is valid
// UTF-8 and counts in code points, as Python does.
#ifndef QUIRE_TEXT_PYTHON_TEXT_H_
#define QUIRE_TEXT_PYTHON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

// The code point at byte *at, which is moved behind it.
char32_t NextCodePoint(std::string_view text, size_t* at);
std::u32string Decode(std::string_view text);
std::string Encode(std::u32string_view codes);
int64_t CountCodePoints(std::string_view text);

// As str.isspace() and str.isprintable() of one character.
bool IsSpace(char32_t code);
bool IsPrintable(char32_t code);

std::string_view StripLeft(std::string_view text);
std::string_view StripRight(std::string_view text);
std::string_view Strip(std::string_view text);
// Without the leading and trailing characters that are in `chars`.
std::string_view StripLeft(std::string_view text, std::string_view chars);
std::string_view StripRight(std::string_view text, std::string_view chars);

// As str.upper() and str.lower(). Throws Error for the few characters whose other case is several
// characters or depends on its neighbours (U+00DF, U+03A3).
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);  // the first character upper, the others lower
std::string Title(std::string_view text);       // the same for every word

// As str.splitlines(): at every kind of line end that Unicode has, without the ends.
std::vector<std::string_view> SplitLines(std::string_view text);

// As repr() of a str: in quotes, with escapes.
std::string Quote(std::string_view text);
// As repr() of a float: the shortest digits that give the number back.
std::string PrintFloat(double number);
// As float(text); absent where Python raises ValueError.
std::optional<double> ParseFloat(std::string_view text);

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_PYTHON_TEXT_H_
