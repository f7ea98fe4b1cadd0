#include "text/utf8.h"

#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace quire {
namespace {

// How a character that begins with some byte goes on (Unicode 15, table 3-7).
struct Lead {
  size_t length = 0;          // of the character; 0 if none begins so
  uint8_t second_min = 0x80;  // of the second byte
  uint8_t second_max = 0xbf;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xc2) return {};  // a continuation, or an overlong form of ASCII
  if (byte < 0xe0) return {.length = 2};
  if (byte == 0xe0) return {.length = 3, .second_min = 0xa0};  // shorter ones are overlong
  if (byte == 0xed) return {.length = 3, .second_max = 0x9f};  // beyond are surrogates
  if (byte < 0xf0) return {.length = 3};
  if (byte == 0xf0) return {.length = 4, .second_min = 0x90};
  if (byte == 0xf4) return {.length = 4, .second_max = 0x8f};  // beyond is past U+10FFFF
  if (byte < 0xf4) return {.length = 4};
  return {};
}

bool Continues(const Lead& lead, size_t index, uint8_t byte) {
  if (index == 1) return byte >= lead.second_min && byte <= lead.second_max;
  return (byte & 0xc0) == 0x80;
}

size_t AsciiPrefix(std::string_view bytes) {
  size_t at = 0;
  for (uint64_t word = 0; at + sizeof(word) <= bytes.size(); at += sizeof(word)) {
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step ReadUtf8(std::string_view bytes) {
  QUIRE_DCHECK(!bytes.empty());
  const auto first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {.kind = Utf8Step::Kind::kIllFormed, .length = 1};
  if (lead.length == 1) return {.length = 1, .character = first};
  char32_t character = first & (0x7fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {.kind = Utf8Step::Kind::kCut, .length = i};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (!Continues(lead, i, byte)) return {.kind = Utf8Step::Kind::kIllFormed, .length = i};
    character = character << 6 | (byte & 0x3fu);
  }
  return {.length = lead.length, .character = character};
}

bool IsUtf8(std::string_view bytes) {
  while (true) {
    bytes.remove_prefix(AsciiPrefix(bytes));
    if (bytes.empty()) return true;
    const Utf8Step step = ReadUtf8(bytes);
    if (step.kind != Utf8Step::Kind::kCharacter) return false;
    bytes.remove_prefix(step.length);
  }
}

std::string ReplaceIllFormed(std::string_view bytes) {
  std::string rest(bytes);
  std::string text = TakeSettled(rest);
  if (!rest.empty()) text += kReplacementUtf8;
  return text;
}

std::string TakeSettled(std::string& bytes) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Step step = ReadUtf8(rest);
    if (step.kind == Utf8Step::Kind::kCut) break;
    text +=
        step.kind == Utf8Step::Kind::kCharacter ? rest.substr(0, step.length) : kReplacementUtf8;
    rest.remove_prefix(step.length);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

void AppendUtf8(char32_t character, std::string& out) {
  const auto append = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (character < 0x80) {
    append(character);
  } else if (character < 0x800) {
    append(0xc0 | character >> 6);
    append(0x80 | (character & 0x3f));
  } else if (character < 0x10000) {
    append(0xe0 | character >> 12);
    append(0x80 | (character >> 6 & 0x3f));
    append(0x80 | (character & 0x3f));
  } else {
    append(0xf0 | character >> 18);
    append(0x80 | (character >> 12 & 0x3f));
    append(0x80 | (character >> 6 & 0x3f));
    append(0x80 | (character & 0x3f));
  }
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

}  // namespace quire
