#include "serve/neutral_fields.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

struct NeutralField {
  const char* name;
  const char* expected;  // besides null; in messages
  bool (*is_neutral)(const OrderedJson& value);
  const char* schema;  // of what is neutral, besides null
};

bool Never(const OrderedJson&) { return false; }
bool IsString(const OrderedJson& value) { return value.is_string(); }
bool IsFalse(const OrderedJson& value) { return value == false; }
bool IsTrue(const OrderedJson& value) { return value == true; }
bool IsMinusOne(const OrderedJson& value) { return value.is_number_integer() && value == -1; }
bool IsEmptyArray(const OrderedJson& value) { return value.is_array() && value.empty(); }
bool IsObject(const OrderedJson& value) { return value.is_object(); }
bool IsEmptyString(const OrderedJson& value) { return value == ""; }
bool IsNone(const OrderedJson& value) { return value == "none"; }
bool IsOrdinaryTier(const OrderedJson& value) { return value == "auto" || value == "default"; }
bool IsMessagesTier(const OrderedJson& value) {
  return value == "auto" || value == "standard_only";
}
bool IsDisabled(const OrderedJson& value) { return value == "disabled"; }
bool IsZero(const OrderedJson& value) { return value.is_number_integer() && value == 0; }
bool IsTextOnly(const OrderedJson& value) { return value == OrderedJson::array({"text"}); }

constexpr NeutralField kCommon[] = {
    {"user", "a string", IsString, R"({"type": "string"})"},
    {"prompt_logprobs", "null (not supported; echo with logprobs of /v1/completions is)", Never,
     R"({"type": "null"})"},
    {"use_beam_search", "false (not supported)", IsFalse, R"({"const": false})"},
};

constexpr NeutralField kChat[] = {
    {"functions", "[] (not supported; tools are)", IsEmptyArray,
     R"({"type": "array", "maxItems": 0})"},
    {"function_call", "\"none\" (not supported; tool_choice is)", IsNone, R"({"const": "none"})"},
    {"modalities", "[\"text\"] (others are not supported)", IsTextOnly, R"({"const": ["text"]})"},
    {"metadata", "an object", IsObject, R"({"type": "object"})"},
    {"store", "false (nothing is stored)", IsFalse, R"({"const": false})"},
    {"service_tier", "\"auto\" or \"default\"", IsOrdinaryTier, R"({"enum": ["auto", "default"]})"},
    {"safety_identifier", "a string", IsString, R"({"type": "string"})"},
    {"prompt_cache_key", "a string", IsString, R"({"type": "string"})"},
    {"echo", "false (of /v1/completions only)", IsFalse, R"({"const": false})"},
    {"audio", "null (not supported)", Never, R"({"type": "null"})"},
    {"prediction", "null (not supported)", Never, R"({"type": "null"})"},
    {"reasoning_effort", "null (not supported; chat_template_kwargs reaches the template)", Never,
     R"({"type": "null"})"},
    {"verbosity", "null (not supported)", Never, R"({"type": "null"})"},
    {"web_search_options", "null (not supported)", Never, R"({"type": "null"})"},
};

constexpr NeutralField kCompletion[] = {
    {"suffix", "\"\" (not supported)", IsEmptyString, R"({"const": ""})"},
};

constexpr NeutralField kGenerate[] = {
    {"rid", "a string", IsString, R"({"type": "string"})"},
    {"logprob_start_len", "-1 (not supported)", IsMinusOne, R"({"const": -1})"},
    {"return_hidden_states", "false (not supported)", IsFalse, R"({"const": false})"},
    {"image_data", "null (not supported)", Never, R"({"type": "null"})"},
    {"lora_path", "null (not supported)", Never, R"({"type": "null"})"},
    {"session_params", "null (not supported)", Never, R"({"type": "null"})"},
};

constexpr NeutralField kSamplingParams[] = {
    {"spaces_between_special_tokens", "true", IsTrue, R"({"const": true})"},
    {"structural_tag", "null (not supported)", Never, R"({"type": "null"})"},
    {"stop_regex", "null (not supported)", Never, R"({"type": "null"})"},
    {"custom_params", "null (not supported)", Never, R"({"type": "null"})"},
};

constexpr NeutralField kMessages[] = {
    {"metadata", "an object", IsObject, R"({"type": "object"})"},
    {"cache_control", "an object", IsObject, R"({"type": "object"})"},
    {"service_tier", "\"auto\" or \"standard_only\"", IsMessagesTier,
     R"({"enum": ["auto", "standard_only"]})"},
    {"mcp_servers", "[] (not supported)", IsEmptyArray, R"({"type": "array", "maxItems": 0})"},
    {"container", "null (not supported)", Never, R"({"type": "null"})"},
};

constexpr NeutralField kResponses[] = {
    {"user", "a string", IsString, R"({"type": "string"})"},
    {"metadata", "an object", IsObject, R"({"type": "object"})"},
    {"safety_identifier", "a string", IsString, R"({"type": "string"})"},
    {"prompt_cache_key", "a string", IsString, R"({"type": "string"})"},
    {"service_tier", "\"auto\" or \"default\"", IsOrdinaryTier, R"({"enum": ["auto", "default"]})"},
    {"store", "false (nothing is stored)", IsFalse, R"({"const": false})"},
    {"previous_response_id", "null (nothing is stored; give all items as input)", Never,
     R"({"type": "null"})"},
    {"conversation", "null (nothing is stored; give all items as input)", Never,
     R"({"type": "null"})"},
    {"background", "false (not supported)", IsFalse, R"({"const": false})"},
    {"prompt", "null (nothing is stored)", Never, R"({"type": "null"})"},
    {"truncation", "\"disabled\" (others are not supported)", IsDisabled,
     R"({"const": "disabled"})"},
    {"include", "[] (not supported)", IsEmptyArray, R"({"type": "array", "maxItems": 0})"},
    {"top_logprobs", "0 (not supported)", IsZero, R"({"const": 0})"},
    {"max_tool_calls", "null (not supported)", Never, R"({"type": "null"})"},
};

void RequireNeutral(RequestFields& body, std::span<const NeutralField> fields) {
  for (const NeutralField& neutral : fields) {
    const std::optional<RequestField> field = body.Find(neutral.name);
    if (field && !neutral.is_neutral(field->value())) field->Refuse(neutral.expected);
  }
}

OrderedJson Schemas(std::span<const NeutralField> fields) {
  OrderedJson schemas = OrderedJson::object();
  for (const NeutralField& field : fields) {
    OrderedJson schema = OrderedJson::parse(field.schema);
    schema["description"] = fmt::format("Accepted so that clients may send it: {}", field.expected);
    schemas[field.name] = std::move(schema);
  }
  return schemas;
}

}  // namespace

OrderedJson NeutralSchemas(NeutralFor fields) {
  switch (fields) {
    case NeutralFor::kBoth:
      return Schemas(kCommon);
    case NeutralFor::kChat:
      return Schemas(kChat);
    case NeutralFor::kCompletion:
      return Schemas(kCompletion);
    case NeutralFor::kGenerate:
      return Schemas(kGenerate);
    case NeutralFor::kSamplingParams:
      return Schemas(kSamplingParams);
    case NeutralFor::kMessages:
      return Schemas(kMessages);
    case NeutralFor::kResponses:
      return Schemas(kResponses);
  }
  throw InternalError("NeutralSchemas");
}

void RequireNeutralFields(RequestFields& body) { RequireNeutral(body, kCommon); }
void RequireNeutralChatFields(RequestFields& body) { RequireNeutral(body, kChat); }
void RequireNeutralCompletionFields(RequestFields& body) { RequireNeutral(body, kCompletion); }
void RequireNeutralGenerateFields(RequestFields& body) { RequireNeutral(body, kGenerate); }
void RequireNeutralSamplingFields(RequestFields& params) {
  RequireNeutral(params, kSamplingParams);
}
void RequireNeutralMessagesFields(RequestFields& body) { RequireNeutral(body, kMessages); }
void RequireNeutralResponsesFields(RequestFields& body) { RequireNeutral(body, kResponses); }

}  // namespace quire
