// How a model's template writes tool calls: found by asking the template itself.
#ifndef QUIRE_TEXT_TOOL_STYLE_H_
#define QUIRE_TEXT_TOOL_STYLE_H_

#include <optional>

#include "text/chat_format.h"
#include "text/tools.h"

namespace quire {

struct ToolStyle {
  ToolFormat format = ToolFormat::kDeepseekV31;
  // Of calls in messages: whether the template wants their arguments as an object, and not as the text
  // of one, as clients send them.
  bool wants_objects = false;

  bool operator==(const ToolStyle&) const = default;
};

// Writes a conversation with a call in it, and looks how the call comes out. nullopt: the template writes
// none, or in a way that ToolCallParser does not read.
std::optional<ToolStyle> FindToolStyle(const ChatFormat& chat);

}  // namespace quire

#endif  // QUIRE_TEXT_TOOL_STYLE_H_
