// DeepSeek-V3.2's way of writing conversations. The model comes without a template: its authors
// describe the format as a program (encoding/encoding_dsv32.py beside the weights).
#ifndef QUIRE_TEXT_DEEPSEEK_V32_H_
#define QUIRE_TEXT_DEEPSEEK_V32_H_

#include <string>
#include <string_view>

#include "io/json.h"

namespace quire {

enum class ThinkingMode { kChat, kThinking };

struct DeepseekV32Options {
  ThinkingMode mode = ThinkingMode::kChat;
  const OrderedJson* tools = nullptr;  // an array of {"type": "function", "function": {...}}
  // The paragraph that tells the model about its tools, a text of the model's authors. It goes into
  // the system prompt with "{tool_schemas}" as the tools, one JSON object a line, and {dsml_token},
  // {thinking_start_token} and {thinking_end_token} as their tokens. Required with tools.
  std::string_view tools_prompt = {};
};

// The prompt:
//
//   <bos> system text [tools_prompt]
//   <User> text <Assistant>              and then the beginning of the answer:
//     <think>                            in thinking mode, behind the last user message
//     </think>                           otherwise: answers before it keep no reasoning
//   [reasoning </think>] text [calls] <eos>
//   results of calls                     and then <think> or </think> again
//
// A prompt therefore always ends ready for the model, or with a whole answer. Calls and results are
// in the model's own markup, <｜DSML｜function_calls> and <function_results>.
//
// Roles are system, user, assistant and tool; content is a string, an array of {"type": "text"}
// parts, or null. Throws Error(kInvalidArgument) with the place in `messages`: another role or
// content, a result without its call, an answer after the last user message that has neither
// reasoning nor calls in thinking mode.
std::string EncodeDeepseekV32(const OrderedJson& messages, const DeepseekV32Options& options);

}  // namespace quire

#endif  // QUIRE_TEXT_DEEPSEEK_V32_H_
