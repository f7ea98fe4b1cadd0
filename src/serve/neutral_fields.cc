#include "serve/neutral_fields.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <span>

namespace quire {
namespace {

struct NeutralField {
  const char* name;
  const char* expected;  // besides null; in messages
  bool (*is_neutral)(const OrderedJson& value);
};

bool Never(const OrderedJson&) { return false; }
bool IsString(const OrderedJson& value) { return value.is_string(); }
bool IsBool(const OrderedJson& value) { return value.is_boolean(); }
bool IsFalse(const OrderedJson& value) { return value == false; }
bool IsEmptyArray(const OrderedJson& value) { return value.is_array() && value.empty(); }
bool IsEmptyObject(const OrderedJson& value) { return value.is_object() && value.empty(); }
bool IsEmptyString(const OrderedJson& value) { return value == ""; }
bool IsNone(const OrderedJson& value) { return value == "none"; }
bool IsOrdinaryTier(const OrderedJson& value) { return value == "auto" || value == "default"; }
bool IsTextOnly(const OrderedJson& value) { return value == OrderedJson::array({"text"}); }
bool IsTextFormat(const OrderedJson& value) {
  return value.is_object() && value.size() == 1 && value.contains("type") &&
         value["type"] == "text";
}

constexpr NeutralField kCommon[] = {
    {"user", "a string", IsString},
    {"response_format", "{\"type\": \"text\"} (others are not supported)", IsTextFormat},
    {"use_beam_search", "false (not supported)", IsFalse},
    {"include_stop_str_in_output", "false (not supported)", IsFalse},
};

constexpr NeutralField kChat[] = {
    {"tools", "[] (tools are not supported)", IsEmptyArray},
    {"functions", "[] (tools are not supported)", IsEmptyArray},
    {"tool_choice", "\"none\" (tools are not supported)", IsNone},
    {"function_call", "\"none\" (tools are not supported)", IsNone},
    {"parallel_tool_calls", "true or false", IsBool},
    {"modalities", "[\"text\"] (others are not supported)", IsTextOnly},
    {"metadata", "{} (nothing is stored)", IsEmptyObject},
    {"store", "false (nothing is stored)", IsFalse},
    {"service_tier", "\"auto\" or \"default\"", IsOrdinaryTier},
    {"safety_identifier", "a string", IsString},
    {"prompt_cache_key", "a string", IsString},
    {"echo", "false (of /v1/completions only)", IsFalse},
    {"audio", "null (not supported)", Never},
    {"prediction", "null (not supported)", Never},
    {"reasoning_effort", "null (not supported)", Never},
    {"verbosity", "null (not supported)", Never},
    {"web_search_options", "null (not supported)", Never},
};

constexpr NeutralField kCompletion[] = {
    {"suffix", "\"\" (not supported)", IsEmptyString},
};

void RequireNeutral(RequestFields& body, std::span<const NeutralField> fields) {
  for (const NeutralField& neutral : fields) {
    const std::optional<RequestField> field = body.Find(neutral.name);
    if (field && !neutral.is_neutral(field->value())) field->Refuse(neutral.expected);
  }
}

}  // namespace

void RequireNeutralFields(RequestFields& body) { RequireNeutral(body, kCommon); }
void RequireNeutralChatFields(RequestFields& body) { RequireNeutral(body, kChat); }
void RequireNeutralCompletionFields(RequestFields& body) { RequireNeutral(body, kCompletion); }

}  // namespace quire
