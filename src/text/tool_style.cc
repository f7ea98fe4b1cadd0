#include "text/tool_style.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/tool_call_parser.h"

namespace quire {
namespace {

OrderedJson ProbeMessages(const OrderedJson& arguments) {
  const OrderedJson call = {{"id", "functions.probe:0"},
                            {"type", "function"},
                            {"function", {{"name", "probe"}, {"arguments", arguments}}}};
  return OrderedJson::array(
      {{{"role", "user"}, {"content", "probe"}},
       {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}},
       {{"role", "tool"}, {"tool_call_id", "functions.probe:0"}, {"content", "done"}},
       {{"role", "user"}, {"content", "thanks"}}});
}

// A format counts only if the call that was written is read again: a template may well print an object as
// Python does ('key': 'value'), which no model has seen.
std::optional<ToolFormat> Probe(const ChatFormat& chat, const OrderedJson& arguments) {
  const OrderedJson messages = ProbeMessages(arguments);
  std::string text;
  try {
    text = chat.Render({.messages = &messages});
  } catch (const Error&) {
    return std::nullopt;  // it wants them otherwise, or has no tools
  }
  const std::optional<ToolFormat> format = GuessToolFormat(text);
  if (!format) return std::nullopt;
  ToolCallParser parser(*format, nullptr);
  std::string read;
  for (const ToolPieces& pieces : {parser.Put(text), parser.Flush()}) {
    for (const ToolCallDelta& call : pieces.calls) read += call.arguments;
  }
  const OrderedJson expected = {{"key", "value"}};
  if (!OrderedJson::accept(read) || OrderedJson::parse(read) != expected) return std::nullopt;
  return format;
}

}  // namespace

std::optional<ToolStyle> FindToolStyle(const ChatFormat& chat) {
  const OrderedJson arguments = {{"key", "value"}};
  if (const auto format = Probe(chat, Dump(arguments))) return ToolStyle{.format = *format};
  if (const auto format = Probe(chat, arguments)) {
    return ToolStyle{.format = *format, .wants_objects = true};
  }
  return std::nullopt;
}

}  // namespace quire
