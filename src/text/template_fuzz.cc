// Bytes -> a template: refused with an Error, or rendered for a conversation, within bounds, with
// an Error or UTF-8.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace quire {
namespace {

const OrderedJson& Conversation() {
  static const OrderedJson kMessages = ParseOrderedJson(
      R"([{"role": "system", "content": "Be nice."},
          {"role": "user", "content": [{"type": "text", "text": "Hé <think>"}]},
          {"role": "assistant", "content": "a</think>b", "tool_calls": [{"id": "1", "type": "f",
           "function": {"name": "f", "arguments": {"x": [1, 2.5, null], "y": {}}}}]},
          {"role": "tool", "content": "{}", "tool_call_id": "1"}])",
      "messages");
  return kMessages;
}

void RenderOnce(std::string_view source) {
  constexpr int64_t kMaxOutput = 1 << 18;
  const auto chat = ChatTemplate::Parse(
      source, "fuzz", {.max_output_bytes = kMaxOutput, .max_work = int64_t{1} << 22});
  static const OrderedJson kTools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const std::string text =
      chat.Render(Conversation(), {.tools = &kTools, .bos_token = "<s>", .eos_token = "</s>"});
  QUIRE_CHECK(text.size() <= kMaxOutput && IsUtf8(text));
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    quire::RenderOnce({reinterpret_cast<const char*>(bytes), size});
  } catch (const quire::Error& error) {
    // A message can always be sent as JSON.
    (void)quire::Json(error.what()).dump();
  }
  return 0;
}
