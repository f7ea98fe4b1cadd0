#include "text/tools.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

struct NamedToolFormat {
  const char* name;
  ToolFormat format;
};
// The first of a format is its name. GLM-4.7 leaves out line feeds, which say nothing.
constexpr NamedToolFormat kNamedFormats[] = {{"deepseek_v3", ToolFormat::kDeepseekV3},
                                             {"deepseek_v31", ToolFormat::kDeepseekV31},
                                             {"deepseek_v32", ToolFormat::kDeepseekV32},
                                             {"kimi_k2", ToolFormat::kKimiK2},
                                             {"glm45", ToolFormat::kGlm45},
                                             {"glm47", ToolFormat::kGlm45}};

}  // namespace

OrderedJson ToolsForTemplate(std::span<const ToolDefinition> tools) {
  OrderedJson list = OrderedJson::array();
  for (const ToolDefinition& tool : tools) {
    OrderedJson function = {{"name", tool.name}};
    if (tool.description) function["description"] = *tool.description;
    if (!tool.parameters.is_null()) function["parameters"] = tool.parameters;
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

OrderedJson ToolCallForTemplate(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

bool IsTextSchema(const OrderedJson& schema) {
  if (!schema.is_object()) return false;
  if (schema.contains("const")) return schema["const"].is_string();
  if (schema.contains("enum") && schema["enum"].is_array()) {
    return std::ranges::all_of(schema["enum"],
                               [](const OrderedJson& value) { return value.is_string(); });
  }
  return schema.contains("type") && schema["type"] == "string";
}

TextParameters FindTextParameters(std::span<const ToolDefinition> tools) {
  TextParameters found;
  for (const ToolDefinition& tool : tools) {
    if (!tool.parameters.is_object() || !tool.parameters.contains("properties")) continue;
    const OrderedJson& properties = tool.parameters["properties"];
    if (!properties.is_object()) continue;
    for (const auto& [name, schema] : properties.items()) {
      if (IsTextSchema(schema)) found[tool.name].insert(name);
    }
  }
  return found;
}

const char* ToolFormatName(ToolFormat format) {
  return std::ranges::find(kNamedFormats, format, &NamedToolFormat::format)->name;
}

std::optional<ToolFormat> FindToolFormat(std::string_view name) {
  for (const NamedToolFormat& named : kNamedFormats) {
    if (name == named.name) return named.format;
  }
  return std::nullopt;
}

std::optional<ToolFormat> GuessToolFormat(std::string_view text) {
  const auto has = [&](std::string_view tag) { return text.find(tag) != std::string_view::npos; };
  if (has(tool_tags::kDsmlCall)) return ToolFormat::kDeepseekV32;
  if (has(tool_tags::kKimiCall)) return ToolFormat::kKimiK2;
  if (has(tool_tags::kGlmCall) && has(tool_tags::kGlmKey)) return ToolFormat::kGlm45;
  if (has(tool_tags::kDeepseekFunction)) return ToolFormat::kDeepseekV3;
  if (has(tool_tags::kDeepseekCall)) return ToolFormat::kDeepseekV31;
  return std::nullopt;
}

}  // namespace quire
