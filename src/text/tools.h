// Tools that a model may call, its calls, and the markup in which each family of models writes them.
// No endpoint's JSON: that is made of these.
#ifndef QUIRE_TEXT_TOOLS_H_
#define QUIRE_TEXT_TOOLS_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace quire {

struct ToolDefinition {
  std::string name = {};
  std::optional<std::string> description = {};
  OrderedJson parameters =
      nullptr;          // a JSON Schema of the arguments, an object; null: of any object
  bool strict = false;  // all calls are to have such arguments, whether or not there must be any
};

// A call, as a conversation holds it.
struct ToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // the text of a JSON object; of a model's own, it may be anything

  bool operator==(const ToolCall&) const = default;
};

// A part of a call that is being written. The first has the name.
struct ToolCallDelta {
  size_t index = 0;  // of the call in its answer
  std::optional<std::string> name = {};
  std::optional<std::string> id = {};  // with the name: the model's own, if it gives any
  std::string arguments = {};          // all of a call's, joined, are ToolCall::arguments

  bool operator==(const ToolCallDelta&) const = default;
};

// What templates read as "tools": [{"type": "function", "function": {"name", "description", "parameters"}}],
// with what is there.
OrderedJson ToolsForTemplate(std::span<const ToolDefinition> tools);
// What they read as one of a message's "tool_calls": {"id", "type": "function", "function": {"name",
// "arguments": the text}}.
OrderedJson ToolCallForTemplate(const ToolCall& call);

// The parameters that are texts, by tool: {"weather": {"city"}}. Some markups do not say it themselves.
using TextParameters = std::map<std::string, std::set<std::string>>;
TextParameters FindTextParameters(std::span<const ToolDefinition> tools);
// Whether all that a schema allows is strings, as far as its "type", "enum" and "const" say.
bool IsTextSchema(const OrderedJson& schema);

// How calls are written:
//
//   deepseek_v3   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
//                 ```json
//                 {...}
//                 ```<｜tool▁call▁end｜> ... <｜tool▁calls▁end｜>
//   deepseek_v31  <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
//                 ... <｜tool▁calls▁end｜>
//   deepseek_v32  <｜DSML｜function_calls> <｜DSML｜invoke name="NAME">
//                 <｜DSML｜parameter name="KEY" string="true">text</｜DSML｜parameter> ...
//                 </｜DSML｜invoke> ... </｜DSML｜function_calls>; a value with string="false" is JSON
//   kimi_k2       <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0
//                 <|tool_call_argument_begin|>{...}<|tool_call_end|> ... <|tool_calls_section_end|>
//   glm45         <tool_call>NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> ... </tool_call>;
//                 a value is text if the tool's schema says so, otherwise JSON if it is any
//
// White space between the parts says nothing.
enum class ToolFormat { kDeepseekV3, kDeepseekV31, kDeepseekV32, kKimiK2, kGlm45 };

inline constexpr ToolFormat kToolFormats[] = {ToolFormat::kDeepseekV3, ToolFormat::kDeepseekV31,
                                              ToolFormat::kDeepseekV32, ToolFormat::kKimiK2,
                                              ToolFormat::kGlm45};
const char* ToolFormatName(ToolFormat format);
std::optional<ToolFormat> FindToolFormat(std::string_view name);
// The format of a text that has a call in it; nullopt: none of these.
std::optional<ToolFormat> GuessToolFormat(std::string_view text);

// Tags of these formats, for what reads and writes them.
namespace tool_tags {
inline constexpr std::string_view kDeepseekCalls = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kDeepseekCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kDeepseekCall = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kDeepseekFunction = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
inline constexpr std::string_view kDeepseekSeparator = "<｜tool▁sep｜>";
inline constexpr std::string_view kDeepseekCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kDeepseekFence = "```json\n";
inline constexpr std::string_view kDeepseekFenceEnd = "```<｜tool▁call▁end｜>";
inline constexpr std::string_view kDsmlCalls = "<｜DSML｜function_calls>";
inline constexpr std::string_view kDsmlCallsEnd = "</｜DSML｜function_calls>";
inline constexpr std::string_view kDsmlCall = "<｜DSML｜invoke name=\"";
inline constexpr std::string_view kDsmlCallEnd = "</｜DSML｜invoke>";
inline constexpr std::string_view kDsmlKey = "<｜DSML｜parameter name=\"";
inline constexpr std::string_view kDsmlKeyEnd = "\" string=\"";
inline constexpr std::string_view kDsmlText = "true\">";
inline constexpr std::string_view kDsmlJson = "false\">";
inline constexpr std::string_view kDsmlValueEnd = "</｜DSML｜parameter>";
inline constexpr std::string_view kKimiCalls = "<|tool_calls_section_begin|>";
inline constexpr std::string_view kKimiCallsEnd = "<|tool_calls_section_end|>";
inline constexpr std::string_view kKimiCall = "<|tool_call_begin|>";
inline constexpr std::string_view kKimiArguments = "<|tool_call_argument_begin|>";
inline constexpr std::string_view kKimiCallEnd = "<|tool_call_end|>";
inline constexpr std::string_view kGlmCall = "<tool_call>";
inline constexpr std::string_view kGlmCallEnd = "</tool_call>";
inline constexpr std::string_view kGlmKey = "<arg_key>";
inline constexpr std::string_view kGlmKeyEnd = "</arg_key>";
inline constexpr std::string_view kGlmValue = "<arg_value>";
inline constexpr std::string_view kGlmValueEnd = "</arg_value>";
}  // namespace tool_tags

}  // namespace quire

#endif  // QUIRE_TEXT_TOOLS_H_
