#include "serve/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tools.h"

namespace quire {
namespace {

constexpr int64_t kMaxCallIndex = (int64_t{1} << 31) - 1;
constexpr const char* kRoles =
    "one of \"system\", \"developer\", \"user\", \"assistant\", \"tool\"";

std::string ReadRole(RequestFields& message) {
  const RequestField field = message.At("role");
  const std::string role = field.value().is_string() ? field.String() : "";
  // What OpenAI's newer models call system; templates know that one.
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    field.Refuse(kRoles);
  }
  return role;
}

std::string ReadPart(const RequestField& field) {
  RequestFields part = field.Object();
  const RequestField type = part.At("type");
  if (type.value() != "text") type.Refuse("\"text\"");
  std::string text = part.At("text").String();
  part.RefuseUnknown();
  return text;
}

std::string ReadParts(const RequestField& content) {
  if (content.value().empty()) content.Refuse("at least one part");
  std::string joined;
  bool first = true;
  for (const RequestField& part : content.Array()) {
    if (!first) joined += '\n';
    first = false;
    joined += ReadPart(part);
  }
  return joined;
}

std::string ReadContent(RequestFields& message, std::string_view role) {
  const std::optional<RequestField> content = message.Find("content");
  if (!content && role == "assistant") return "";
  if (!content) return message.At("content").String();  // refuses
  if (content->value().is_array()) return ReadParts(*content);
  if (!content->value().is_string()) content->Refuse("a string or an array of text parts");
  return content->String();
}

// What clients send back of an answer they got, and asks for nothing.
void RequireNeutral(RequestFields& message) {
  const std::optional<RequestField> list = message.Find("annotations");
  if (list && !(list->value().is_array() && list->value().empty())) {
    list->Refuse("null or [] (not supported)");
  }
  for (const char* name : {"function_call", "audio", "refusal"}) {
    if (const auto field = message.Find(name)) field->Refuse("null (not supported)");
  }
}

ToolCall ReadToolCall(const RequestField& field) {
  RequestFields fields = field.Object();
  ToolCall call{.id = fields.At("id").String()};
  if (const auto type = fields.Find("type"); type && type->value() != "function") {
    type->Refuse("\"function\"");
  }
  (void)fields.Int("index", 0, kMaxCallIndex, 0);  // of a stream that a client has joined
  RequestFields function = fields.At("function").Object();
  call.name = function.At("name").String();
  call.arguments = function.At("arguments").String();
  function.RefuseUnknown();
  fields.RefuseUnknown();
  return call;
}

void ReadToolParts(RequestFields& message, std::string_view role, OrderedJson& read) {
  const std::optional<RequestField> calls = message.Find("tool_calls");
  if (calls && !(calls->value().is_array() && calls->value().empty())) {
    if (role != "assistant") calls->Refuse("null or [], but for an assistant");
    OrderedJson& list = read["tool_calls"] = OrderedJson::array();
    for (const RequestField& call : calls->Array()) {
      list.push_back(ToolCallForTemplate(ReadToolCall(call)));
    }
  }
  const std::optional<RequestField> id = message.Find("tool_call_id");
  if (id && role != "tool") id->Refuse("null, but for a tool");
  if (role == "tool") read["tool_call_id"] = message.At("tool_call_id").String();
}

OrderedJson ReadMessage(const RequestField& field) {
  RequestFields message = field.Object();
  OrderedJson read = OrderedJson::object();
  const std::string role = ReadRole(message);
  read["role"] = role;
  read["content"] = ReadContent(message, role);
  for (const char* name : {"name", "reasoning_content"}) {
    if (const auto text = message.Find(name)) read[name] = text->String();
  }
  ReadToolParts(message, role, read);
  RequireNeutral(message);
  message.RefuseUnknown();
  return read;
}

// Names that a template has from elsewhere.
void RequireOwnName(const RequestField& variables) {
  constexpr std::array kTaken = {"messages", "tools", "add_generation_prompt"};
  for (const char* name : kTaken) {
    if (variables.value().contains(name)) {
      const std::string path = variables.path() + "." + name;
      throw BadField(path, path + ": expected as a field of the request, not of the template");
    }
  }
}

}  // namespace

ChatRequest Conversation::ToChatRequest() const {
  return {.messages = &messages,
          .tools = tools.empty() ? nullptr : &tools,
          .add_generation_prompt = add_generation_prompt,
          .continue_final_message = continue_final_message,
          .variables = &template_variables};
}

void Conversation::MakeArgumentsObjects() {
  for (size_t m = 0; m < messages.size(); ++m) {
    if (!messages[m].contains("tool_calls")) continue;
    OrderedJson& calls = messages[m]["tool_calls"];
    for (size_t c = 0; c < calls.size(); ++c) {
      OrderedJson& arguments = calls[c]["function"]["arguments"];
      const std::string path = fmt::format("messages[{}].tool_calls[{}].function.arguments", m, c);
      const auto text = arguments.get<std::string>();
      try {
        // A call without any.
        arguments = text.empty() ? OrderedJson::object() : ParseOrderedJson(text, path);
      } catch (const Error& error) {
        throw BadField(path, error.what());
      }
      if (!arguments.is_object()) {
        RequestField(arguments, path).Refuse("the text of a JSON object");
      }
    }
  }
}

OrderedJson ReadTemplateVariables(RequestFields& body) {
  const auto variables = body.Find("chat_template_kwargs");
  if (!variables) return OrderedJson::object();
  (void)variables->Object();  // refuses what is none
  RequireOwnName(*variables);
  return variables->value();
}

Conversation ReadConversation(RequestFields& body) {
  Conversation conversation;
  const RequestField messages = body.At("messages");
  if (messages.value().is_array() && messages.value().empty()) {
    messages.Refuse("at least one message");
  }
  for (const RequestField& message : messages.Array()) {
    conversation.messages.push_back(ReadMessage(message));
  }
  conversation.template_variables = ReadTemplateVariables(body);
  const auto continued = body.Find("continue_final_message");
  conversation.continue_final_message = continued && continued->Bool();
  conversation.add_generation_prompt =
      body.Bool("add_generation_prompt", !conversation.continue_final_message);
  if (!conversation.continue_final_message) return conversation;
  if (conversation.messages.back()["role"] != "assistant") {
    continued->Refuse("false unless the last message is the assistant's");
  }
  if (conversation.add_generation_prompt) continued->Refuse("false with add_generation_prompt");
  return conversation;
}

OrderedJson ConversationSchemas(const RequestLimits& limits) {
  const OrderedJson text = {{"type", "string"}};
  const OrderedJson text_or_null = {{"type", {"string", "null"}}};
  const OrderedJson nothing = {{"type", "null"}};
  const OrderedJson no_list = {{"anyOf", {{{"type", "array"}, {"maxItems", 0}}, nothing}}};
  const bool others = static_cast<bool>(limits.ignore_unknown);
  const OrderedJson parts = {{"type", "array"},
                             {"minItems", 1},
                             {"items",
                              {{"type", "object"},
                               {"properties", {{"type", {{"const", "text"}}}, {"text", text}}},
                               {"required", {"type", "text"}},
                               {"additionalProperties", others}}}};
  const OrderedJson function = {{"type", "object"},
                                {"properties", {{"name", text}, {"arguments", text}}},
                                {"required", {"name", "arguments"}},
                                {"additionalProperties", others}};
  const OrderedJson call = {
      {"type", "object"},
      {"properties",
       {{"id", text},
        {"type", {{"enum", {"function", nullptr}}}},
        {"index", {{"type", {"integer", "null"}}, {"minimum", 0}, {"maximum", kMaxCallIndex}}},
        {"function", function}}},
      {"required", {"id", "function"}},
      {"additionalProperties", others}};
  const OrderedJson calls = {{"anyOf", {{{"type", "array"}, {"items", call}}, nothing}}};
  const OrderedJson of_assistant = OrderedJson::array({"assistant"});
  const OrderedJson of_tool = OrderedJson::array({"tool"});
  const auto message = [&](const OrderedJson& roles, const OrderedJson& content) -> OrderedJson {
    OrderedJson properties = {{"role", {{"enum", roles}}},
                              {"content", content},
                              {"name", text_or_null},
                              {"reasoning_content", text_or_null}};
    for (const char* name : {"tool_calls", "annotations"}) properties[name] = no_list;
    for (const char* name : {"tool_call_id", "function_call", "audio", "refusal"}) {
      properties[name] = nothing;
    }
    OrderedJson required = OrderedJson::array({"role"});
    if (roles == of_assistant) {
      properties["tool_calls"] = calls;
    } else {
      required.push_back("content");
    }
    if (roles == of_tool) {
      properties["tool_call_id"] = text;
      required.push_back("tool_call_id");
    }
    return {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", std::move(required)},
            {"additionalProperties", others}};
  };
  const OrderedJson asks = message({"system", "developer", "user"}, {{"anyOf", {text, parts}}});
  const OrderedJson answers = message(of_assistant, {{"anyOf", {text, parts, nothing}}});
  const OrderedJson results = message(of_tool, {{"anyOf", {text, parts}}});
  return {{"messages",
           {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", {asks, answers, results}}}}}},
          {"chat_template_kwargs", {{"type", {"object", "null"}}}},
          {"add_generation_prompt", {{"type", {"boolean", "null"}}}},
          {"continue_final_message", {{"type", {"boolean", "null"}}}}};
}

}  // namespace quire
