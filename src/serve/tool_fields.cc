#include "serve/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace quire {
namespace {

constexpr size_t kMaxToolNameBytes = 64;  // OpenAI's
constexpr const char* kToolNameBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

ToolDefinition ReadTool(const RequestField& field) {
  RequestFields tool = field.Object();
  const RequestField type = tool.At("type");
  if (type.value() != "function") type.Refuse("\"function\" (others are not supported)");
  RequestFields function = tool.At("function").Object();
  ToolDefinition read{.name = ReadToolName(function.At("name"))};
  if (const auto text = function.Find("description")) read.description = text->String();
  if (const auto parameters = function.Find("parameters")) {
    (void)parameters->Object();  // refuses what is none
    read.parameters = parameters->value();
  }
  read.strict = function.Bool("strict", false);
  function.RefuseUnknown();
  tool.RefuseUnknown();
  return read;
}

std::string ReadChosenName(const RequestField& field, std::span<const ToolDefinition> tools) {
  RequestFields choice = field.Object();
  const RequestField type = choice.At("type");
  if (type.value() != "function") type.Refuse("\"function\"");
  RequestFields function = choice.At("function").Object();
  std::string name = ReadChosenTool(function.At("name"), tools);
  function.RefuseUnknown();
  choice.RefuseUnknown();
  return name;
}

void ReadToolChoice(const RequestField& field, ToolFields& out) {
  if (field.value() == "none") {
    out.choice = ToolChoice::kNone;
  } else if (out.tools.empty()) {
    field.Refuse("\"none\" without tools");
  } else if (field.value() == "auto") {
    out.choice = ToolChoice::kAuto;
  } else if (field.value() == "required") {
    out.choice = ToolChoice::kRequired;
  } else if (field.value().is_object()) {
    out.name = ReadChosenName(field, out.tools);
    out.choice = ToolChoice::kRequired;
  } else {
    field.Refuse(
        R"("none", "auto", "required" or {"type": "function", "function": {"name": ...}})");
  }
}

}  // namespace

std::string ReadToolName(const RequestField& field) {
  std::string name = field.String(1, kMaxToolNameBytes);
  if (name.find_first_not_of(kToolNameBytes) != std::string::npos) {
    field.Refuse("letters, digits, \"_\", \"-\" and \".\"");
  }
  return name;
}

OrderedJson ToolNameSchema() { return {{"type", "string"}, {"pattern", "^[A-Za-z0-9_.-]{1,64}$"}}; }

std::vector<ToolDefinition> ReadToolList(RequestFields& body,
                                         ToolDefinition (*read)(const RequestField& tool)) {
  std::vector<ToolDefinition> list;
  const auto tools = body.Find("tools");
  if (!tools) return list;
  if (tools->value().is_array() && tools->value().size() > kMaxTools) {
    tools->Refuse(fmt::format("at most {} tools", kMaxTools));
  }
  std::set<std::string> names;
  for (const RequestField& field : tools->Array()) {
    list.push_back(read(field));
    if (!names.insert(list.back().name).second) {
      field.Refuse(fmt::format("one tool of the name {}", list.back().name));
    }
  }
  return list;
}

std::vector<ToolDefinition> ReadToolList(RequestFields& body) {
  return ReadToolList(body, ReadTool);
}

std::string ReadChosenTool(const RequestField& name, std::span<const ToolDefinition> tools) {
  const std::string chosen = name.String();
  const auto is_chosen = [&](const ToolDefinition& tool) { return tool.name == chosen; };
  if (std::ranges::none_of(tools, is_chosen)) name.Refuse("the name of one of the tools");
  return chosen;
}

ToolFields ReadTools(RequestFields& body) {
  ToolFields out;
  out.tools = ReadToolList(body);
  if (!out.tools.empty()) out.choice = ToolChoice::kAuto;
  if (const auto choice = body.Find("tool_choice")) ReadToolChoice(*choice, out);
  out.parallel = body.Bool("parallel_tool_calls", true);
  return out;
}

OrderedJson ToolSchemas(const RequestLimits& limits) {
  const bool others = static_cast<bool>(limits.ignore_unknown);
  const OrderedJson function = {{"type", "object"},
                                {"properties",
                                 {{"name", ToolNameSchema()},
                                  {"description", {{"type", {"string", "null"}}}},
                                  {"parameters", {{"type", {"object", "null"}}}},
                                  {"strict", {{"type", {"boolean", "null"}}}}}},
                                {"required", {"name"}},
                                {"additionalProperties", others}};
  const auto of_function = [&](const OrderedJson& inside) -> OrderedJson {
    return {{"type", "object"},
            {"properties", {{"type", {{"const", "function"}}}, {"function", inside}}},
            {"required", {"type", "function"}},
            {"additionalProperties", others}};
  };
  const OrderedJson named = {{"type", "object"},
                             {"properties", {{"name", ToolNameSchema()}}},
                             {"required", {"name"}},
                             {"additionalProperties", others}};
  return {
      {"tools", {{"type", "array"}, {"items", of_function(function)}, {"maxItems", kMaxTools}}},
      {"tool_choice", {{"anyOf", {{{"enum", {"none", "auto", "required"}}}, of_function(named)}}}},
      {"parallel_tool_calls", {{"type", "boolean"}}}};
}

std::string MakeToolCallId(std::string_view answer_id, size_t choice, size_t index) {
  const size_t dash = answer_id.rfind('-');
  if (dash != std::string_view::npos) answer_id.remove_prefix(dash + 1);
  return fmt::format("call_{}_{}_{}", answer_id, choice, index);
}

}  // namespace quire
