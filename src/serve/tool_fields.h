// The fields of a chat request about tools: tools, tool_choice, parallel_tool_calls.
//
//   tools                [{"type": "function", "function": {"name", "description", "parameters", "strict"}}],
//                        up to 256, each name once: letters, digits, "_", "-", "." and 64 bytes at most
//   tool_choice          "auto" (with tools, if absent), "none" (without), "required", or
//                        {"type": "function", "function": {"name"}}
//   parallel_tool_calls  false: one call at most
#ifndef QUIRE_SERVE_TOOL_FIELDS_H_
#define QUIRE_SERVE_TOOL_FIELDS_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "serve/request_fields.h"
#include "text/tools.h"

namespace quire {

enum class ToolChoice {
  kNone,      // the model is not told of its tools
  kAuto,      // it may call some
  kRequired,  // it calls one at least, and writes nothing else but reasoning
};

// What a request asks for, whatever its API.
struct ToolFields {
  std::vector<ToolDefinition> tools = {};
  ToolChoice choice = ToolChoice::kNone;
  std::optional<std::string> name = {};  // kRequired: the tool to call; absent: any
  bool parallel = true;                  // false: one call at most
};

inline constexpr size_t kMaxTools = 256;  // OpenAI: 128
// A tool's name: what "name" says in the list above. Throws ApiError.
std::string ReadToolName(const RequestField& field);
// A JSON Schema of the name.
OrderedJson ToolNameSchema();

// The field "tools", if it is there: each as `read` has it, each name once. Throws ApiError.
std::vector<ToolDefinition> ReadToolList(RequestFields& body,
                                         ToolDefinition (*read)(const RequestField& tool));
// The name of one of the tools. Throws ApiError.
std::string ReadChosenTool(const RequestField& name, std::span<const ToolDefinition> tools);

// All three, or tools alone. Throw ApiError.
ToolFields ReadTools(RequestFields& body);
std::vector<ToolDefinition> ReadToolList(RequestFields& body);
// JSON Schemas of these fields, by name.
OrderedJson ToolSchemas(const RequestLimits& limits);

// The id of a call that the model gave none: "call_" and what tells it apart from all others.
std::string MakeToolCallId(std::string_view answer_id, size_t choice, size_t index);

}  // namespace quire

#endif  // QUIRE_SERVE_TOOL_FIELDS_H_
