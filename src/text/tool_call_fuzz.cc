// Bytes -> a text that a model wrote, in the format of the first byte: its calls do not depend on how the text is
// cut, which the second byte says, and nothing is made up.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tool_call_parser.h"
#include "text/utf8.h"

namespace quire {
namespace {

struct FuzzedCalls {
  std::string content;
  std::vector<ToolCall> calls;
  bool operator==(const FuzzedCalls&) const = default;
};

void Join(const ToolPieces& pieces, FuzzedCalls& joined) {
  joined.content += pieces.content;
  for (const ToolCallDelta& delta : pieces.calls) {
    QUIRE_CHECK(delta.name.has_value() == (delta.index == joined.calls.size()));
    if (delta.name) {
      QUIRE_CHECK(!delta.name->empty());
      joined.calls.push_back({.id = delta.id.value_or(""), .name = *delta.name});
    }
    QUIRE_CHECK(delta.index + 1 == joined.calls.size(), "a call that has ended goes on");
    joined.calls.back().arguments += delta.arguments;
  }
}

// In pieces of up to `most` bytes.
FuzzedCalls Read(ToolFormat format, std::string_view text, size_t most) {
  static const auto kTexts =
      std::make_shared<const TextParameters>(TextParameters{{"f", {"a", "b"}}});
  ToolCallParser parser(format, kTexts);
  std::mt19937 random(1);
  FuzzedCalls joined;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, 1 + random() % most);
    Join(parser.Put(piece), joined);
    text.remove_prefix(piece.size());
  }
  Join(parser.Flush(), joined);
  QUIRE_CHECK(parser.num_calls() == joined.calls.size() &&
              parser.num_whole_calls() <= parser.num_calls());
  return joined;
}

void Fuzz(uint8_t kind, uint8_t cut, std::string_view bytes) {
  const ToolFormat format = kToolFormats[kind % std::size(kToolFormats)];
  // What a detokenizer gives is UTF-8.
  const std::string text = ReplaceIllFormed(bytes);
  const FuzzedCalls whole = Read(format, text, std::max<size_t>(text.size(), 1));
  QUIRE_CHECK(Read(format, text, 1) == whole, "byte by byte it is another");
  QUIRE_CHECK(Read(format, text, size_t{cut} + 1) == whole, "in pieces it is another");
  QUIRE_CHECK(whole.content.size() <= text.size());
  if (whole.calls.empty()) QUIRE_CHECK(whole.content == text, "text is lost");
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  quire::Fuzz(data[0], data[1], {reinterpret_cast<const char*>(data) + 2, size - 2});
  return 0;
}
