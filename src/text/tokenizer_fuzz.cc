// Bytes -> text, or ids, for a tokenizer of each kind: what is encoded decodes to what it was, and a
// stream of tokens to the same as all of them at once.
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quire {
namespace {

struct Case {
  std::unique_ptr<const Tokenizer> tokenizer;
  bool is_exact = false;  // decoding gives the text back, byte by byte
};

Case Open(const char* family, bool is_exact) {
  return {OpenTokenizer(std::filesystem::path(QUIRE_TOKENIZERS) / family), is_exact};
}

const std::array<Case, 5>& Cases() {
  static const std::array<Case, 5> cases = {Open("deepseek_v3", true), Open("deepseek_v2", true),
                                            Open("kimi", true), Open("minicpm3", false),
                                            Open("splits", false)};
  return cases;
}

void CheckDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip : {false, true}) {
    const DecodeOptions options{.skip_special_tokens = skip};
    const std::string text = tokenizer.Decode(ids, options);
    QUIRE_CHECK(IsUtf8(text));
    Detokenizer detokenizer(tokenizer, options);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += detokenizer.Put(id);
      QUIRE_CHECK(IsUtf8(streamed));
    }
    QUIRE_CHECK(streamed + detokenizer.Flush() == text);
  }
}

void CheckText(const Case& one, std::string_view text) {
  for (const bool parse : {false, true}) {
    const std::vector<int32_t> ids = one.tokenizer->Encode(text, {.parse_special_tokens = parse});
    for (const int32_t id : ids) QUIRE_CHECK(!one.tokenizer->TokenSpelling(id).empty());
    CheckDecode(*one.tokenizer, ids);
    QUIRE_CHECK(!one.is_exact || one.tokenizer->Decode(ids, {.skip_special_tokens = false}) ==
                                     ReplaceIllFormed(text));
  }
}

void CheckIds(const Case& one, std::string_view bytes) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<uint8_t>(bytes[i]) << 8 | static_cast<uint8_t>(bytes[i + 1]));
  }
  CheckDecode(*one.tokenizer, ids);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes + 1), size - 1);
  const quire::Case& one = quire::Cases()[bytes[0] % quire::Cases().size()];
  if (bytes[0] < 0xc0) {
    quire::CheckText(one, rest);
  } else {
    quire::CheckIds(one, rest);
  }
  return 0;
}
