#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr char32_t kFirstStandIn = 0x100;
constexpr int kNumCharacters = 0x144;

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<char32_t, 256> MakeCharacters() {
  std::array<char32_t, 256> characters = {};
  char32_t stand_in = kFirstStandIn;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = StandsForItself(byte) ? static_cast<char32_t>(byte) : stand_in++;
  }
  return characters;
}
constexpr std::array<char32_t, 256> kCharacters = MakeCharacters();

constexpr std::array<int16_t, kNumCharacters> MakeBytes() {
  std::array<int16_t, kNumCharacters> bytes = {};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, kNumCharacters> kBytes = MakeBytes();  // -1: none

}  // namespace

std::string SpellBytes(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) AppendUtf8(kCharacters[static_cast<uint8_t>(byte)], spelling);
  return spelling;
}

std::optional<std::string> ReadSpelledBytes(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Step step = ReadUtf8(spelling);
    if (step.character >= kNumCharacters || kBytes[step.character] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[step.character]);
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace quire
