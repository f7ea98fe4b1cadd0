// Bytes -> JSON: refused with an Error, or a value that is the same after printing and parsing, and
// every part of which is returned or refused by every getter.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "io/json.h"

namespace quire {
namespace {

template <class Fn>
void Try(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    // A message can always be sent as JSON.
    (void)Json(error.what()).dump();
  }
}

void ReadAll(const JsonRef& ref) {
  Try([&] { (void)ref.Int(-5, 1000); });
  Try([&] { (void)ref.Number(); });
  Try([&] { (void)ref.Bool(); });
  Try([&] { (void)ref.String(); });
  Try([&] { (void)ref.OneOf({"a", "b"}); });
  Try([&] { (void)ref.At("a"); });
  Try([&] { (void)ref.Find("a"); });
  Try([&] { (void)ref.UnknownKeys({}); });
  if (ref.value().is_array()) {
    for (const JsonRef& element : ref.Array()) ReadAll(element);
  } else if (ref.value().is_object()) {
    for (const auto& [key, member] : ref.Members()) ReadAll(member);
  }
}

void ParseTwice(std::string_view text) {
  const Json value = ParseJson(text, "fuzz", {.max_depth = 8});
  QUIRE_CHECK(ParseJson(value.dump(), "printed") == value);
  ReadAll(JsonRef(value, "fuzz"));
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  quire::Try([&] { quire::ParseTwice(text); });
  return 0;
}
