#include "serve/responses_request.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "serve/constraint_fields.h"
#include "serve/neutral_fields.h"

namespace quire {
namespace {

// A float as it was written, and not as a double has it.
double Written(float number) { return std::stod(fmt::format("{}", number)); }

void JoinText(std::string_view text, std::string& joined, bool& has_text) {
  if (std::exchange(has_text, true)) joined += '\n';
  joined += text;
}

// The input's items, as they become messages of a template.
class InputItems {
 public:
  void Add(const RequestField& field) {
    RequestFields item = field.Object();
    const std::optional<RequestField> type = item.Find("type");
    if (!type || type->value() == "message") {
      AddMessage(item);
    } else if (type->value() == "reasoning") {
      AddReasoning(item);
    } else if (type->value() == "function_call") {
      AddCall(item);
    } else if (type->value() == "function_call_output") {
      AddOutput(item);
    } else {
      type->Refuse(
          "\"message\", \"reasoning\", \"function_call\" or \"function_call_output\" (others are "
          "not supported)");
    }
    for (const char* name : {"id", "status"}) {
      if (const auto text = item.Find(name)) (void)text->String();
    }
    item.RefuseUnknown();
  }

  OrderedJson Take() {
    EndTurn();
    return std::move(messages_);
  }

 private:
  void AddMessage(RequestFields& item) {
    const RequestField role = item.At("role");
    const bool is_assistant = role.value() == "assistant";
    if (!is_assistant && role.value() != "user" && role.value() != "system" &&
        role.value() != "developer") {
      role.Refuse("one of \"system\", \"developer\", \"user\", \"assistant\"");
    }
    const RequestField content = item.At("content");
    const std::string text = content.value().is_string()
                                 ? content.String()
                                 : ReadParts(content, is_assistant ? "output_text" : "input_text");
    if (is_assistant) {
      if (const auto phase = item.Find("phase")) (void)phase->String();
      JoinText(text, content_, has_content_);
      has_turn_ = true;
      return;
    }
    EndTurn();
    const bool is_user = role.value() == "user";
    messages_.push_back({{"role", is_user ? "user" : "system"}, {"content", text}});
  }

  static std::string ReadParts(const RequestField& content, const char* own_type) {
    if (!content.value().is_array() || content.value().empty()) {
      content.Refuse("a string, or an array of at least one part");
    }
    std::string joined;
    bool has_text = false;
    for (const RequestField& element : content.Array()) {
      RequestFields part = element.Object();
      const RequestField type = part.At("type");
      // Clients write either for what the assistant said.
      const bool is_input = type.value() == "input_text";
      if (!is_input && type.value() != own_type) {
        type.Refuse(fmt::format("\"{}\" (others are not supported)", own_type));
      }
      JoinText(part.At("text").String(), joined, has_text);
      if (!is_input) {
        for (const char* name : {"annotations", "logprobs"}) {
          const auto list = part.Find(name);
          if (list && !(list->value().is_array() && list->value().empty())) {
            list->Refuse("null or [] (not supported)");
          }
        }
      }
      part.RefuseUnknown();
    }
    return joined;
  }

  void AddReasoning(RequestFields& item) {
    const auto summary = item.Find("summary");
    if (summary && !(summary->value().is_array() && summary->value().empty())) {
      summary->Refuse("null or [] (not supported)");
    }
    if (const auto encrypted = item.Find("encrypted_content")) {
      encrypted->Refuse("null (not supported)");
    }
    if (const auto content = item.Find("content")) {
      for (const RequestField& element : content->Array()) {
        RequestFields part = element.Object();
        const RequestField type = part.At("type");
        if (type.value() != "reasoning_text") type.Refuse("\"reasoning_text\"");
        JoinText(part.At("text").String(), reasoning_, has_reasoning_);
        part.RefuseUnknown();
      }
    }
    has_turn_ = true;
  }

  void AddCall(RequestFields& item) {
    const ToolCall call{.id = item.At("call_id").String(),
                        .name = item.At("name").String(),
                        .arguments = item.At("arguments").String()};
    calls_.push_back(ToolCallForTemplate(call));
    has_turn_ = true;
  }

  void AddOutput(RequestFields& item) {
    EndTurn();
    const RequestField output = item.At("output");
    OrderedJson message = {{"role", "tool"}};
    message["content"] =
        output.value().is_string() ? output.String() : ReadParts(output, "input_text");
    message["tool_call_id"] = item.At("call_id").String();
    messages_.push_back(std::move(message));
  }

  // The assistant's, if it said or thought anything since the last of another role.
  void EndTurn() {
    if (!std::exchange(has_turn_, false)) return;
    OrderedJson message = {{"role", "assistant"}, {"content", std::exchange(content_, {})}};
    if (has_reasoning_) message["reasoning_content"] = std::exchange(reasoning_, {});
    if (!calls_.empty()) {
      message["tool_calls"] = std::exchange(calls_, OrderedJson::array());
    }
    has_content_ = has_reasoning_ = false;
    messages_.push_back(std::move(message));
  }

  OrderedJson messages_ = OrderedJson::array();
  // Of the assistant's turn at hand.
  bool has_turn_ = false;
  bool has_content_ = false;
  bool has_reasoning_ = false;
  std::string content_;
  std::string reasoning_;
  OrderedJson calls_ = OrderedJson::array();
};

OrderedJson ReadInput(const RequestField& input) {
  if (input.value().is_string()) {
    return OrderedJson::array({{{"role", "user"}, {"content", input.String()}}});
  }
  if (!input.value().is_array() || input.value().empty()) {
    input.Refuse("a string, or an array of at least one item");
  }
  InputItems items;
  for (const RequestField& item : input.Array()) items.Add(item);
  return items.Take();
}

// What the answer repeats of it.
OrderedJson ReadReasoning(RequestFields& body, OrderedJson& variables) {
  OrderedJson repeated = {{"effort", nullptr}, {"summary", nullptr}};
  const auto field = body.Find("reasoning");
  if (!field) return repeated;
  RequestFields reasoning = field->Object();
  if (const auto effort = reasoning.Find("effort")) {
    if (effort->value() != "none") {
      effort->Refuse("\"none\" (not supported; chat_template_kwargs reaches the template)");
    }
    for (const char* name : {"thinking", "enable_thinking"}) {
      if (!variables.contains(name)) variables[name] = false;
    }
    repeated["effort"] = "none";
  }
  if (const auto summary = reasoning.Find("summary"); summary && summary->value() != "auto") {
    summary->Refuse("\"auto\" (thoughts are given as they are)");
  }
  reasoning.RefuseUnknown();
  return repeated;
}

OrderedJson ReadText(RequestFields& body, GenerationFields& generation) {
  OrderedJson repeated = {{"format", {{"type", "text"}}}};
  const auto field = body.Find("text");
  if (!field) {
    generation.constraint = ReadTextConstraint(std::nullopt, body);
    return repeated;
  }
  RequestFields text = field->Object();
  const auto format = text.Find("format");
  generation.constraint = ReadTextConstraint(format, body);
  if (format) repeated["format"] = format->value();
  if (const auto verbosity = text.Find("verbosity"); verbosity && verbosity->value() != "medium") {
    verbosity->Refuse("\"medium\" (others are not supported)");
  }
  text.RefuseUnknown();
  return repeated;
}

ToolDefinition ReadResponsesTool(const RequestField& field) {
  RequestFields tool = field.Object();
  const RequestField type = tool.At("type");
  if (type.value() != "function") type.Refuse("\"function\" (others are not supported)");
  ToolDefinition read{.name = ReadToolName(tool.At("name"))};
  if (const auto text = tool.Find("description")) read.description = text->String();
  if (const auto parameters = tool.Find("parameters")) {
    (void)parameters->Object();  // refuses what is none
    read.parameters = parameters->value();
  }
  read.strict = tool.Bool("strict", false);  // OpenAI's own is true if it is not there
  tool.RefuseUnknown();
  return read;
}

void ReadResponsesToolChoice(const RequestField& field, ToolFields& out) {
  if (field.value() == "none") {
    out.choice = ToolChoice::kNone;
  } else if (field.value() == "auto") {
    out.choice = out.tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  } else if (out.tools.empty()) {
    field.Refuse("\"auto\" or \"none\" without tools");
  } else if (field.value() == "required") {
    out.choice = ToolChoice::kRequired;
  } else if (field.value().is_object()) {
    RequestFields choice = field.Object();
    const RequestField type = choice.At("type");
    if (type.value() != "function") type.Refuse("\"function\" (others are not supported)");
    out.name = ReadChosenTool(choice.At("name"), out.tools);
    out.choice = ToolChoice::kRequired;
    choice.RefuseUnknown();
  } else {
    field.Refuse(R"("none", "auto", "required" or {"type": "function", "name": ...})");
  }
}

ToolFields ReadResponsesTools(RequestFields& body) {
  ToolFields out;
  out.tools = ReadToolList(body, ReadResponsesTool);
  if (!out.tools.empty()) out.choice = ToolChoice::kAuto;
  if (const auto choice = body.Find("tool_choice")) ReadResponsesToolChoice(*choice, out);
  out.parallel = body.Bool("parallel_tool_calls", true);
  return out;
}

void ReadStreamOptions(RequestFields& body) {
  const auto field = body.Find("stream_options");
  if (!field) return;
  RequestFields options = field->Object();
  const auto obfuscation = options.Find("include_obfuscation");
  if (obfuscation && obfuscation->Bool()) obfuscation->Refuse("false (not supported)");
  options.RefuseUnknown();
}

OrderedJson ValueOrNull(RequestFields& body, const char* name) {
  const auto field = body.Find(name);
  return field ? field->value() : OrderedJson(nullptr);
}

}  // namespace

ResponsesRequest ParseResponsesRequest(std::string_view body, const GenerationConfig& defaults,
                                       const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  ResponsesRequest request;
  GenerationFields& generation = request.chat.generation;
  generation = ReadEngineFields(fields, defaults);
  generation.max_tokens = ReadTokenLimit(fields, "max_output_tokens", 1, limits);
  OrderedJson repeated = {{"instructions", nullptr},
                          {"max_output_tokens", ValueOrNull(fields, "max_output_tokens")}};
  if (!generation.max_tokens) generation.max_tokens = limits.max_output_tokens;
  ReadMinTokens(fields, generation);
  ReadStops(fields, generation);
  ReadStreamOptions(fields);

  Conversation& conversation = request.chat.conversation;
  if (const auto instructions = fields.Find("instructions")) {
    conversation.messages.push_back({{"role", "system"}, {"content", instructions->String()}});
    repeated["instructions"] = instructions->value();
  }
  for (OrderedJson& message : ReadInput(fields.At("input"))) {
    conversation.messages.push_back(std::move(message));
  }
  conversation.template_variables = ReadTemplateVariables(fields);
  repeated["reasoning"] = ReadReasoning(fields, conversation.template_variables);
  repeated["text"] = ReadText(fields, generation);

  request.chat.tools = ReadResponsesTools(fields);

  RequireNeutralResponsesFields(fields);
  fields.RefuseUnknown();
  repeated["temperature"] = Written(generation.sampling.temperature);
  repeated["top_p"] = Written(generation.sampling.top_p);
  repeated["metadata"] = json.contains("metadata") ? json["metadata"] : OrderedJson::object();
  repeated["user"] = ValueOrNull(fields, "user");
  repeated["previous_response_id"] = nullptr;
  repeated["store"] = false;
  repeated["truncation"] = "disabled";
  const ToolFields& tools = request.chat.tools;
  repeated["parallel_tool_calls"] = tools.parallel;
  repeated["tool_choice"] = ValueOrNull(fields, "tool_choice");
  if (repeated["tool_choice"].is_null()) {
    repeated["tool_choice"] = tools.choice == ToolChoice::kNone ? "none" : "auto";
  }
  repeated["tools"] = ValueOrNull(fields, "tools");
  if (repeated["tools"].is_null()) repeated["tools"] = OrderedJson::array();
  request.repeated = std::move(repeated);
  return request;
}

// ---- The same, as JSON Schema ----

namespace {

// Of a nested object.
class ObjectSchemas {
 public:
  explicit ObjectSchemas(const RequestLimits& limits)
      : others_(static_cast<bool>(limits.ignore_unknown)) {}

  OrderedJson Of(OrderedJson properties, OrderedJson required) const {
    return {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", std::move(required)},
            {"additionalProperties", others_}};
  }

 private:
  bool others_;
};

OrderedJson InputSchema(const ObjectSchemas& object) {
  const OrderedJson text = {{"type", "string"}};
  const OrderedJson text_or_null = {{"type", {"string", "null"}}};
  const OrderedJson no_list = {
      {"anyOf", {{{"type", "array"}, {"maxItems", 0}}, {{"type", "null"}}}}};
  const OrderedJson input_part =
      object.Of({{"type", {{"const", "input_text"}}}, {"text", text}}, {"type", "text"});
  const OrderedJson output_part = object.Of({{"type", {{"const", "output_text"}}},
                                             {"text", text},
                                             {"annotations", no_list},
                                             {"logprobs", no_list}},
                                            {"type", "text"});
  const auto message = [&](OrderedJson roles, OrderedJson part) {
    OrderedJson properties = {
        {"type", {{"enum", {"message", nullptr}}}},
        {"role", {{"enum", std::move(roles)}}},
        {"content",
         {{"anyOf", {text, {{"type", "array"}, {"minItems", 1}, {"items", std::move(part)}}}}}},
        {"id", text_or_null},
        {"status", text_or_null}};
    if (properties["role"]["enum"].size() == 1) properties["phase"] = text_or_null;
    return object.Of(std::move(properties), {"role", "content"});
  };
  const OrderedJson reasoning_part =
      object.Of({{"type", {{"const", "reasoning_text"}}}, {"text", text}}, {"type", "text"});
  const OrderedJson reasoning = object.Of(
      {{"type", {{"const", "reasoning"}}},
       {"summary", no_list},
       {"content",
        {{"anyOf", {{{"type", "array"}, {"items", reasoning_part}}, {{"type", "null"}}}}}},
       {"encrypted_content", {{"type", "null"}}},
       {"id", text_or_null},
       {"status", text_or_null}},
      OrderedJson::array({"type"}));
  const OrderedJson call = object.Of({{"type", {{"const", "function_call"}}},
                                      {"call_id", text},
                                      {"name", text},
                                      {"arguments", text},
                                      {"id", text_or_null},
                                      {"status", text_or_null}},
                                     {"type", "call_id", "name", "arguments"});
  const OrderedJson output = object.Of(
      {{"type", {{"const", "function_call_output"}}},
       {"call_id", text},
       {"output", {{"anyOf", {text, {{"type", "array"}, {"minItems", 1}, {"items", input_part}}}}}},
       {"id", text_or_null},
       {"status", text_or_null}},
      {"type", "call_id", "output"});
  const OrderedJson items = {
      message({"system", "developer", "user"}, input_part),
      message(OrderedJson::array({"assistant"}), {{"anyOf", {input_part, output_part}}}), reasoning,
      call, output};
  return {{"anyOf", {text, {{"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", items}}}}}}};
}

}  // namespace

OrderedJson ResponsesSchema(const RequestLimits& limits) {
  const ObjectSchemas object(limits);
  OrderedJson fields = EngineSchemas();
  fields.update(NeutralSchemas(NeutralFor::kResponses));
  fields.update(StructuredSchemas());
  fields["input"] = InputSchema(object);
  fields["instructions"] = {{"type", "string"}};
  fields["max_output_tokens"] =
      IntSchema(1, limits.max_output_tokens.value_or(std::numeric_limits<int64_t>::max()));
  fields["min_tokens"] = IntSchema(0, kMostTokens);
  fields["stop"] = {{"anyOf", {TextSchema(1), StopTextsSchema()}}};
  fields["stop_token_ids"] = StopTokensSchema();
  fields["stream_options"] =
      object.Of({{"include_obfuscation", {{"enum", {false, nullptr}}}}}, OrderedJson::array());
  fields["reasoning"] = object.Of(
      {{"effort", {{"enum", {"none", nullptr}}}}, {"summary", {{"enum", {"auto", nullptr}}}}},
      OrderedJson::array());
  fields["text"] = object.Of({{"format", {{"anyOf", {TextFormatSchema(), {{"type", "null"}}}}}},
                              {"verbosity", {{"enum", {"medium", nullptr}}}}},
                             OrderedJson::array());
  fields["chat_template_kwargs"] = {{"type", "object"}};
  const OrderedJson tool = object.Of({{"type", {{"const", "function"}}},
                                      {"name", ToolNameSchema()},
                                      {"description", {{"type", {"string", "null"}}}},
                                      {"parameters", {{"type", {"object", "null"}}}},
                                      {"strict", {{"type", {"boolean", "null"}}}}},
                                     {"type", "name"});
  const OrderedJson named = object.Of(
      {{"type", {{"const", "function"}}}, {"name", {{"type", "string"}}}}, {"type", "name"});
  fields["tools"] = {{"type", "array"}, {"items", tool}, {"maxItems", kMaxTools}};
  fields["tool_choice"] = {{"anyOf", {{{"enum", {"none", "auto", "required"}}}, named}}};
  fields["parallel_tool_calls"] = {{"type", "boolean"}};
  return BodySchema(std::move(fields), {"input"}, limits);
}

}  // namespace quire
