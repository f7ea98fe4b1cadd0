// Bytes -> tokenizer.json: refused with an Error, or a tokenizer that encodes and decodes, or says with
// an Error that it cannot.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace quire {
namespace {

void Use(const Tokenizer& tokenizer) {
  for (const std::string_view text : {"", "a ab  abc\n\n<s> 12 \xe4\xbd\xa0\xf0\x9f\x98\x80!",
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, {.add_special_tokens = true});
    QUIRE_CHECK(IsUtf8(tokenizer.Decode(ids)));
  }
}

void Parse(std::string_view text) {
  const Json json = ParseJson(text, "fuzz", {.max_depth = 16});
  Use(Tokenizer(ParseTokenizerJson(JsonRef(json, "fuzz"), {})));
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    quire::Parse({reinterpret_cast<const char*>(bytes), size});
  } catch (const quire::Error& error) {
    // Refused. A message can always be sent as JSON.
    (void)quire::Json(error.what()).dump();
  }
  return 0;
}
