#include "text/jinja_literals.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "text/utf8.h"

namespace quire::jinja {
namespace {

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

// The bytes of (_?digit)* in that base.
size_t DigitBytes(std::string_view text, int base) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const size_t digit = text[bytes] == '_' ? bytes + 1 : bytes;
    if (digit >= text.size() || DigitValue(text[digit]) >= base) break;
    bytes = digit + 1;
  }
  return bytes;
}

// The bytes of the float at the beginning of `text`, 0 if there is none: it needs a point with
// digits on both sides, or an exponent.
size_t FloatBytes(std::string_view text) {
  const size_t whole = DigitBytes(text, 10);
  size_t bytes = whole;
  const auto digits_at = [&](size_t at) {
    return at < text.size() && text[at] != '_' ? DigitBytes(text.substr(at), 10) : 0;
  };
  if (bytes < text.size() && text[bytes] == '.' && digits_at(bytes + 1) > 0) {
    bytes += 1 + digits_at(bytes + 1);
  }
  if (bytes < text.size() && (text[bytes] == 'e' || text[bytes] == 'E')) {
    const bool has_sign =
        bytes + 1 < text.size() && (text[bytes + 1] == '+' || text[bytes + 1] == '-');
    const size_t exponent = bytes + (has_sign ? 2 : 1);
    if (digits_at(exponent) > 0) bytes = exponent + digits_at(exponent);
  }
  return bytes == whole ? 0 : bytes;
}

int BaseOf(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return 10;
  const char mark = static_cast<char>(text[1] | 0x20);
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  return DigitBytes(text.substr(2), base) > 0 ? base : 10;
}

std::optional<Int> IntOf(std::string_view digits, int base) {
  UnsignedInt value = 0;
  for (const char c : digits) {
    if (c == '_') continue;
    value = value * static_cast<UnsignedInt>(base) + static_cast<UnsignedInt>(DigitValue(c));
    if (value >= UnsignedInt{1} << 64) return std::nullopt;
  }
  return static_cast<Int>(value);
}

NumberLiteral ReadInteger(std::string_view text) {
  const int base = BaseOf(text);
  const size_t prefix = base == 10 ? 0 : 2;
  size_t bytes = DigitBytes(text.substr(prefix), base);
  if (base == 10 && text[0] == '0') {  // only zeros may follow
    bytes = std::min(bytes, text.substr(0, bytes).find_first_not_of("0_"));
    while (bytes > 1 && text[bytes - 1] == '_') --bytes;
  }
  const std::optional<Int> value = IntOf(text.substr(prefix, bytes), base);
  if (!value) return {};
  return {.bytes = prefix + bytes, .value = Value::Integer(*value)};
}

// Reads the escapes of one string.
class EscapeReader {
 public:
  explicit EscapeReader(std::string_view text) : text_(text) {}

  StringLiteral Read() {
    while (at_ < text_.size() && out_.error.empty()) {
      const char c = text_[at_++];
      if (c == '\\') {
        ReadEscape();
      } else {
        out_.text += c;
      }
    }
    return out_;
  }

 private:
  // A backslash has been read, and is not the last character: then the string would go on.
  void ReadEscape() {
    const char c = text_[at_++];
    constexpr std::string_view kNames = "nrtabfv\\'\"";
    constexpr std::string_view kValues = "\n\r\t\a\b\f\v\\'\"";
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      out_.text += kValues[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      ReadHex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      --at_;
      ReadOctal();
    } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      out_.error = "a string with \\N or a backslash before a character that is not ASCII";
    } else if (c != '\n') {  // an escaped line end is nothing
      out_.text += {'\\', c};
    }
  }

  void ReadHex(size_t digits) {
    const std::string_view hex = text_.substr(at_, digits);
    const bool is_hex = hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](char c) {
                          return DigitValue(c) < 16;
                        });
    const auto code =
        is_hex ? static_cast<char32_t>(std::strtoul(std::string(hex).c_str(), nullptr, 16))
               : 0xd800;
    at_ += hex.size();
    AddCode(code);
  }

  void ReadOctal() {
    char32_t code = 0;
    for (int i = 0; i < 3 && at_ < text_.size() && DigitValue(text_[at_]) < 8; ++i) {
      code = code * 8 + static_cast<char32_t>(DigitValue(text_[at_++]));
    }
    AddCode(code);
  }

  void AddCode(char32_t code) {
    const bool is_character = code < 0xd800 || (code > 0xdfff && code <= 0x10ffff);
    if (!is_character) {
      out_.error = "a string with an escape that is no character";
      return;
    }
    AppendUtf8(code, out_.text);
  }

  std::string_view text_;
  size_t at_ = 0;
  StringLiteral out_;
};

}  // namespace

NumberLiteral ReadNumber(std::string_view text, bool integers_only) {
  const size_t bytes = integers_only ? 0 : FloatBytes(text);
  if (bytes == 0) return ReadInteger(text);
  std::string plain(text.substr(0, bytes));
  std::erase(plain, '_');
  return {.bytes = bytes, .value = Value::Float(std::strtod(plain.c_str(), nullptr))};
}

StringLiteral ReadEscapes(std::string_view text) { return EscapeReader(text).Read(); }

}  // namespace quire::jinja
