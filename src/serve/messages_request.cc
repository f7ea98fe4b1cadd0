#include "serve/messages_request.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/constraint_fields.h"
#include "serve/neutral_fields.h"

namespace quire {
namespace {

// Behind the fields that a block's type has.
void EndBlock(RequestFields& block) {
  if (const auto control = block.Find("cache_control")) (void)control->Object();
  block.RefuseUnknown();
}

std::string ReadTextBlock(RequestFields& block) {
  std::string text = block.At("text").String();
  const auto citations = block.Find("citations");
  if (citations && !(citations->value().is_array() && citations->value().empty())) {
    citations->Refuse("null or [] (not supported)");
  }
  EndBlock(block);
  return text;
}

std::string JoinedTexts(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "\n"));
}

std::vector<RequestField> BlocksOf(const RequestField& content) {
  if (!content.value().is_array() || content.value().empty()) {
    content.Refuse("a string, or an array of at least one block");
  }
  return content.Array();
}

// A text, or text blocks and nothing else.
std::string ReadTextContent(const RequestField& content) {
  if (content.value().is_string()) return content.String();
  std::vector<std::string> texts;
  for (const RequestField& element : BlocksOf(content)) {
    RequestFields block = element.Object();
    const RequestField type = block.At("type");
    if (type.value() != "text") type.Refuse("\"text\" (others are not supported here)");
    texts.push_back(ReadTextBlock(block));
  }
  return JoinedTexts(texts);
}

ToolCall ReadToolUse(RequestFields& block) {
  ToolCall call{.id = block.At("id").String(), .name = block.At("name").String()};
  const RequestField input = block.At("input");
  (void)input.Object();  // refuses what is none
  call.arguments = Dump(input.value());
  EndBlock(block);
  return call;
}

OrderedJson ReadToolResult(RequestFields& block) {
  OrderedJson message = {{"role", "tool"}, {"content", ""}};
  message["tool_call_id"] = block.At("tool_use_id").String();
  if (const auto content = block.Find("content")) message["content"] = ReadTextContent(*content);
  (void)block.Bool("is_error", false);  // the content says it, and no template has a place for it
  EndBlock(block);
  return message;
}

// What the user says, and what tools gave, in order.
void AddUser(const RequestField& content, OrderedJson& messages) {
  std::vector<std::string> texts;
  const auto add_texts = [&] {
    if (texts.empty()) return;
    messages.push_back({{"role", "user"}, {"content", JoinedTexts(std::exchange(texts, {}))}});
  };
  if (content.value().is_string()) {
    texts.push_back(content.String());
    return add_texts();
  }
  for (const RequestField& element : BlocksOf(content)) {
    RequestFields block = element.Object();
    const RequestField type = block.At("type");
    if (type.value() == "text") {
      texts.push_back(ReadTextBlock(block));
    } else if (type.value() == "tool_result") {
      add_texts();
      messages.push_back(ReadToolResult(block));
    } else {
      type.Refuse("\"text\" or \"tool_result\" (others are not supported)");
    }
  }
  add_texts();
}

OrderedJson ReadAssistant(const RequestField& content) {
  OrderedJson message = {{"role", "assistant"}};
  if (content.value().is_string()) {
    message["content"] = content.String();
    return message;
  }
  std::vector<std::string> texts;
  std::vector<std::string> thoughts;
  OrderedJson calls = OrderedJson::array();
  for (const RequestField& element : BlocksOf(content)) {
    RequestFields block = element.Object();
    const RequestField type = block.At("type");
    if (type.value() == "text") {
      texts.push_back(ReadTextBlock(block));
    } else if (type.value() == "thinking") {
      thoughts.push_back(block.At("thinking").String());
      if (const auto signature = block.Find("signature")) (void)signature->String();
      EndBlock(block);
    } else if (type.value() == "tool_use") {
      calls.push_back(ToolCallForTemplate(ReadToolUse(block)));
    } else {
      type.Refuse("\"text\", \"thinking\" or \"tool_use\" (others are not supported)");
    }
  }
  message["content"] = JoinedTexts(texts);
  if (!thoughts.empty()) message["reasoning_content"] = JoinedTexts(thoughts);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

void AddMessage(const RequestField& field, OrderedJson& messages) {
  RequestFields message = field.Object();
  const RequestField role = message.At("role");
  const RequestField content = message.At("content");
  if (role.value() == "assistant") {
    messages.push_back(ReadAssistant(content));
  } else if (role.value() == "user") {
    AddUser(content, messages);
  } else if (role.value() == "system") {
    messages.push_back({{"role", "system"}, {"content", ReadTextContent(content)}});
  } else {
    role.Refuse("\"user\", \"assistant\" or \"system\"");
  }
  message.RefuseUnknown();
}

ToolDefinition ReadMessagesTool(const RequestField& field) {
  RequestFields tool = field.Object();
  if (const auto type = tool.Find("type"); type && type->value() != "custom") {
    type->Refuse("\"custom\" (others are not supported)");
  }
  ToolDefinition read{.name = ReadToolName(tool.At("name"))};
  if (const auto text = tool.Find("description")) read.description = text->String();
  const RequestField schema = tool.At("input_schema");
  (void)schema.Object();  // refuses what is none
  read.parameters = schema.value();
  read.strict = tool.Bool("strict", false);
  (void)tool.Bool("eager_input_streaming", false);
  EndBlock(tool);
  return read;
}

void ReadMessagesToolChoice(const RequestField& field, ToolFields& out) {
  RequestFields choice = field.Object();
  const RequestField type = choice.At("type");
  if (type.value() == "none") {
    out.choice = ToolChoice::kNone;
  } else if (type.value() == "auto") {
    out.choice = out.tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  } else if (type.value() == "any" || type.value() == "tool") {
    if (out.tools.empty()) type.Refuse("\"auto\" or \"none\" without tools");
    out.choice = ToolChoice::kRequired;
    if (type.value() == "tool") out.name = ReadChosenTool(choice.At("name"), out.tools);
  } else {
    type.Refuse("\"auto\", \"any\", \"tool\" or \"none\"");
  }
  if (type.value() != "none") out.parallel = !choice.Bool("disable_parallel_tool_use", false);
  choice.RefuseUnknown();
}

ToolFields ReadMessagesTools(RequestFields& body) {
  ToolFields out;
  out.tools = ReadToolList(body, ReadMessagesTool);
  if (!out.tools.empty()) out.choice = ToolChoice::kAuto;
  if (const auto choice = body.Find("tool_choice")) ReadMessagesToolChoice(*choice, out);
  return out;
}

void ReadThinking(const RequestField& field, OrderedJson& variables) {
  RequestFields thinking = field.Object();
  const RequestField type = thinking.At("type");
  const bool is_on = type.value() == "enabled" || type.value() == "adaptive";
  if (!is_on && type.value() != "disabled") {
    type.Refuse("\"enabled\", \"adaptive\" or \"disabled\"");
  }
  if (type.value() == "enabled") (void)thinking.At("budget_tokens").Int(1, kMostTokens);
  if (const auto display = thinking.Find("display"); display && display->value() != "summarized") {
    display->Refuse("\"summarized\" (thoughts are given as they are)");
  }
  thinking.RefuseUnknown();
  // As templates call it; what the request itself says to the template stays.
  for (const char* name : {"thinking", "enable_thinking"}) {
    if (!variables.contains(name)) variables[name] = is_on;
  }
}

std::optional<TextConstraint> ReadOutputConfig(RequestFields& body) {
  const auto field = body.Find("output_config");
  if (!field) return ReadOutputConstraint(std::nullopt, body);
  RequestFields config = field->Object();
  std::optional<TextConstraint> constraint = ReadOutputConstraint(config.Find("format"), body);
  if (const auto effort = config.Find("effort"); effort && effort->value() != "high") {
    effort->Refuse("\"high\" (others are not supported)");
  }
  config.RefuseUnknown();
  return constraint;
}

// What the prompt is made of.
void ReadMessagesPrompt(RequestFields& fields, ChatCompletionRequest& request) {
  Conversation& conversation = request.conversation;
  const RequestField messages = fields.At("messages");
  if (messages.value().is_array() && messages.value().empty()) {
    messages.Refuse("at least one message");
  }
  if (const auto system = fields.Find("system")) {
    conversation.messages.push_back({{"role", "system"}, {"content", ReadTextContent(*system)}});
  }
  for (const RequestField& message : messages.Array()) AddMessage(message, conversation.messages);
  const OrderedJson& last = conversation.messages.back();
  if (last.contains("tool_calls")) messages.Refuse("a tool_result behind the last tool_use");
  if (last["role"] == "assistant") {
    conversation.continue_final_message = true;
    conversation.add_generation_prompt = false;
  }
  request.tools = ReadMessagesTools(fields);
  conversation.template_variables = ReadTemplateVariables(fields);
  if (const auto thinking = fields.Find("thinking")) {
    ReadThinking(*thinking, conversation.template_variables);
  }
  request.generation.constraint = ReadOutputConfig(fields);
}

}  // namespace

ChatCompletionRequest ParseMessagesRequest(std::string_view body, const GenerationConfig& defaults,
                                           const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  ChatCompletionRequest request;
  GenerationFields& generation = request.generation;
  generation = ReadEngineFields(fields, defaults);
  ReadMessagesPrompt(fields, request);
  (void)fields.At("max_tokens");  // refuses where it is missing
  generation.max_tokens = ReadTokenLimit(fields, "max_tokens", 1, limits);
  ReadMinTokens(fields, generation);
  if (const auto stop = fields.Find("stop_sequences")) generation.stop = ReadStopTexts(*stop);
  ReadStopTokens(fields, generation);
  RequireNeutralMessagesFields(fields);
  fields.RefuseUnknown();
  return request;
}

ChatCompletionRequest ParseCountTokensRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  ChatCompletionRequest request;
  if (const auto model = fields.Find("model")) request.generation.model = model->String();
  ReadMessagesPrompt(fields, request);
  RequireNeutralMessagesFields(fields);
  fields.RefuseUnknown();
  return request;
}

// ---- The same, as JSON Schema ----

namespace {

OrderedJson MessagesPromptSchemas(const RequestLimits& limits) {
  const bool others = static_cast<bool>(limits.ignore_unknown);
  const OrderedJson text = {{"type", "string"}};
  const OrderedJson object_or_null = {{"type", {"object", "null"}}};
  const auto object = [&](OrderedJson properties, OrderedJson required) -> OrderedJson {
    return {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", std::move(required)},
            {"additionalProperties", others}};
  };
  const auto texts = [&](OrderedJson block) -> OrderedJson {
    return {{"anyOf", {text, {{"type", "array"}, {"minItems", 1}, {"items", std::move(block)}}}}};
  };
  const OrderedJson text_block = object(
      {{"type", {{"const", "text"}}},
       {"text", text},
       {"citations", {{"anyOf", {{{"type", "array"}, {"maxItems", 0}}, {{"type", "null"}}}}}},
       {"cache_control", object_or_null}},
      {"type", "text"});
  const OrderedJson thinking_block = object({{"type", {{"const", "thinking"}}},
                                             {"thinking", text},
                                             {"signature", {{"type", {"string", "null"}}}},
                                             {"cache_control", object_or_null}},
                                            {"type", "thinking"});
  const auto message = [&](OrderedJson roles, OrderedJson block) -> OrderedJson {
    return object({{"role", {{"enum", std::move(roles)}}}, {"content", texts(std::move(block))}},
                  {"role", "content"});
  };
  const OrderedJson tool_use = object({{"type", {{"const", "tool_use"}}},
                                       {"id", text},
                                       {"name", text},
                                       {"input", {{"type", "object"}}},
                                       {"cache_control", object_or_null}},
                                      {"type", "id", "name", "input"});
  OrderedJson result_content = texts(text_block);
  result_content["anyOf"].push_back({{"type", "null"}});
  const OrderedJson tool_result = object({{"type", {{"const", "tool_result"}}},
                                          {"tool_use_id", text},
                                          {"content", std::move(result_content)},
                                          {"is_error", {{"type", {"boolean", "null"}}}},
                                          {"cache_control", object_or_null}},
                                         {"type", "tool_use_id"});
  const OrderedJson tells = message(OrderedJson::array({"system"}), text_block);
  const OrderedJson asks =
      message(OrderedJson::array({"user"}), {{"anyOf", {text_block, tool_result}}});
  const OrderedJson answers = message(OrderedJson::array({"assistant"}),
                                      {{"anyOf", {text_block, thinking_block, tool_use}}});
  const OrderedJson display = {{"enum", {"summarized", nullptr}}};
  const OrderedJson enabled = object({{"type", {{"const", "enabled"}}},
                                      {"budget_tokens", IntSchema(1, kMostTokens)},
                                      {"display", display}},
                                     {"type", "budget_tokens"});
  const OrderedJson plain =
      object({{"type", {{"enum", {"adaptive", "disabled"}}}}, {"display", display}},
             OrderedJson::array({"type"}));
  OrderedJson fields = NeutralSchemas(NeutralFor::kMessages);
  fields.update(StructuredSchemas());
  fields["model"] = text;
  fields["messages"] = {
      {"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", {tells, asks, answers}}}}};
  const OrderedJson tool = object({{"type", {{"enum", {"custom", nullptr}}}},
                                   {"name", ToolNameSchema()},
                                   {"description", {{"type", {"string", "null"}}}},
                                   {"input_schema", {{"type", "object"}}},
                                   {"strict", {{"type", {"boolean", "null"}}}},
                                   {"eager_input_streaming", {{"type", {"boolean", "null"}}}},
                                   {"cache_control", object_or_null}},
                                  {"name", "input_schema"});
  const OrderedJson one_call = {{"type", {"boolean", "null"}}};
  const auto choice = [&](OrderedJson types, OrderedJson more) {
    OrderedJson properties = {{"type", {{"enum", std::move(types)}}}};
    properties.update(more);
    OrderedJson required = OrderedJson::array({"type"});
    if (more.contains("name")) required.push_back("name");
    return object(std::move(properties), std::move(required));
  };
  fields["tools"] = {{"type", "array"}, {"items", tool}, {"maxItems", kMaxTools}};
  fields["tool_choice"] = {{"anyOf",
                            {choice({"auto", "any"}, {{"disable_parallel_tool_use", one_call}}),
                             choice(OrderedJson::array({"none"}), OrderedJson::object()),
                             choice(OrderedJson::array({"tool"}),
                                    {{"name", text}, {"disable_parallel_tool_use", one_call}})}}};
  fields["system"] = texts(text_block);
  fields["thinking"] = {{"anyOf", {enabled, plain}}};
  fields["output_config"] =
      object({{"format", {{"anyOf", {OutputFormatSchema(), {{"type", "null"}}}}}},
              {"effort", {{"enum", {"high", nullptr}}}}},
             OrderedJson::array());
  fields["chat_template_kwargs"] = {{"type", "object"}};
  return fields;
}

}  // namespace

OrderedJson MessagesSchema(const RequestLimits& limits) {
  OrderedJson fields = EngineSchemas();
  fields.update(MessagesPromptSchemas(limits));
  fields["max_tokens"] =
      IntSchema(1, limits.max_output_tokens.value_or(std::numeric_limits<int64_t>::max()));
  fields["min_tokens"] = IntSchema(0, kMostTokens);
  fields["stop_sequences"] = StopTextsSchema();
  fields["stop_token_ids"] = StopTokensSchema();
  return BodySchema(std::move(fields), {"messages", "max_tokens"}, limits);
}

OrderedJson CountTokensSchema(const RequestLimits& limits) {
  return BodySchema(MessagesPromptSchemas(limits), {"messages"}, limits);
}

}  // namespace quire
