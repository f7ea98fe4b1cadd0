#include "serve/openai_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "serve/constraint_fields.h"
#include "serve/neutral_fields.h"

namespace quire {
namespace {

constexpr int64_t kCompletionTokens = 16;  // OpenAI's default

void ReadStream(RequestFields& body, GenerationFields& out) {
  const auto options = body.Find("stream_options");
  if (!options) return;
  if (!out.stream) options->Refuse("null unless \"stream\" is true");
  RequestFields fields = options->Object();
  out.include_usage = fields.Bool("include_usage", false);
  // As vLLM has it: only with the other.
  out.continuous_usage = fields.Bool("continuous_usage_stats", false) && out.include_usage;
  const auto obfuscation = fields.Find("include_obfuscation");
  if (obfuscation && obfuscation->Bool()) obfuscation->Refuse("false (not supported)");
  fields.RefuseUnknown();
}

// `least` is 0 where an answer without a token makes sense.
void ReadMaxTokens(RequestFields& body, int64_t least, const RequestLimits& limits,
                   GenerationFields& out) {
  const std::optional<int64_t> older = ReadTokenLimit(body, "max_tokens", least, limits);
  const std::optional<int64_t> newer = ReadTokenLimit(body, "max_completion_tokens", least, limits);
  if (older && newer && *older != *newer) {
    throw BadField(
        "max_completion_tokens",
        fmt::format("max_completion_tokens: expected {}, as max_tokens, got {}", *older, *newer));
  }
  out.max_tokens = older ? older : newer;
}

// All but the length of the answer and what is asked for about its tokens.
GenerationFields ReadGeneration(RequestFields& body, const GenerationConfig& defaults,
                                const RequestLimits& limits) {
  GenerationFields out = ReadEngineFields(body, defaults);
  out.n = static_cast<int32_t>(body.Int("n", 1, limits.max_n, 1));
  out.token_ids = body.Bool("return_token_ids", false);
  ReadStream(body, out);
  ReadStops(body, out);
  out.constraint = ReadConstraint(body);
  RequireNeutralFields(body);
  return out;
}

void ReadChatLogprobs(RequestFields& body, GenerationFields& out) {
  out.logprobs = body.Bool("logprobs", false);
  const auto top = body.Find("top_logprobs");
  if (!top) return;
  out.sampling.top_logprobs = static_cast<int32_t>(top->Int(0, kMaxTopLogprobs));
  if (out.sampling.top_logprobs > 0 && !out.logprobs) {
    top->Refuse("0 unless \"logprobs\" is true");
  }
}

void ReadCompletionLogprobs(RequestFields& body, GenerationFields& out) {
  const auto logprobs = body.Find("logprobs");
  if (!logprobs) return;
  out.logprobs = true;
  out.sampling.top_logprobs = static_cast<int32_t>(logprobs->Int(0, kMaxTopLogprobs));
}

CompletionPrompt ReadPrompt(const RequestField& field) {
  if (field.value().is_string()) return field.String(1, std::numeric_limits<size_t>::max());
  std::vector<int32_t> tokens = field.Tokens();
  if (tokens.empty()) field.Refuse("at least one token id");
  return tokens;
}

// A text, texts, tokens, or lists of tokens.
std::vector<CompletionPrompt> ReadPrompts(const RequestField& field, const RequestLimits& limits) {
  constexpr const char* kForms = "a string, an array of strings, of token ids, or of such arrays";
  const OrderedJson& value = field.value();
  if (value.is_string()) return {ReadPrompt(field)};
  if (!value.is_array() || value.empty()) field.Refuse(kForms);
  if (value.front().is_number()) return {ReadPrompt(field)};
  if (std::cmp_greater(value.size(), limits.max_prompts)) {
    field.Refuse(fmt::format("at most {} prompts", limits.max_prompts));
  }
  const auto kind = value.front().type();
  if (kind != OrderedJson::value_t::string && kind != OrderedJson::value_t::array) {
    field.Refuse(kForms);
  }
  std::vector<CompletionPrompt> prompts;
  for (const RequestField& prompt : field.Array()) {
    if (prompt.value().type() != kind) {
      prompt.Refuse(kind == OrderedJson::value_t::string ? "a string, as the first"
                                                         : "an array of token ids, as the first");
    }
    prompts.push_back(ReadPrompt(prompt));
  }
  return prompts;
}

}  // namespace

ChatCompletionRequest ParseChatCompletionRequest(std::string_view body,
                                                 const GenerationConfig& defaults,
                                                 const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  ChatCompletionRequest request;
  request.conversation = ReadConversation(fields);
  request.generation = ReadGeneration(fields, defaults, limits);
  ReadMaxTokens(fields, 1, limits, request.generation);
  if (!request.generation.max_tokens) request.generation.max_tokens = limits.max_output_tokens;
  ReadMinTokens(fields, request.generation);
  ReadChatLogprobs(fields, request.generation);
  request.tools = ReadTools(fields);
  RequireNeutralChatFields(fields);
  fields.RefuseUnknown();
  return request;
}

CompletionRequest ParseCompletionRequest(std::string_view body, const GenerationConfig& defaults,
                                         const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  CompletionRequest request;
  request.prompts = ReadPrompts(fields.At("prompt"), limits);
  request.generation = ReadGeneration(fields, defaults, limits);
  GenerationFields& generation = request.generation;
  request.echo = fields.Bool("echo", false);
  ReadMaxTokens(fields, request.echo ? 0 : 1, limits, generation);
  if (!generation.max_tokens) {
    generation.max_tokens =
        std::min(kCompletionTokens, limits.max_output_tokens.value_or(kMostTokens));
  }
  generation.prompt_only = *generation.max_tokens == 0;
  ReadMinTokens(fields, generation);
  ReadCompletionLogprobs(fields, generation);
  generation.score_prompt = request.echo && generation.logprobs;
  if (const auto best_of = fields.Find("best_of"); best_of && best_of->value() != generation.n) {
    best_of->Refuse(fmt::format("{}, as n", generation.n));
  }
  RequireNeutralCompletionFields(fields);
  fields.RefuseUnknown();
  return request;
}

namespace {

constexpr int64_t kGenerateTokens = 128;  // SGLang's default

void ReadSamplingParams(RequestFields params, const RequestLimits& limits, GenerationFields& out) {
  ReadSampling(params, out, "sampling_seed");
  ReadLogitBias(params, out);
  ReadStops(params, out);
  out.n = static_cast<int32_t>(params.Int("n", 1, limits.max_n, 1));
  out.include_stop = params.Bool("no_stop_trim", false);
  out.ignore_eos = params.Bool("ignore_eos", false);
  out.skip_special_tokens = params.Bool("skip_special_tokens", true);
  const int64_t most = limits.max_output_tokens.value_or(kMostTokens);
  out.max_tokens = params.Int("max_new_tokens", 1, most, std::min(kGenerateTokens, most));
  out.min_tokens = params.Int("min_new_tokens", 0, *out.max_tokens, 0);
  out.constraint = ReadSamplingConstraint(params);
  RequireNeutralSamplingFields(params);
  params.RefuseUnknown();
}

void ReadGenerateLogprobs(RequestFields& body, GenerateRequest& request) {
  GenerationFields& generation = request.generation;
  if (const auto logprobs = body.Find("return_logprob"); logprobs && logprobs->Bool()) {
    if (generation.stream) logprobs->Refuse("false with \"stream\"");
    generation.logprobs = true;
  }
  if (const auto top = body.Find("top_logprobs_num")) {
    generation.sampling.top_logprobs = static_cast<int32_t>(top->Int(0, kMaxTopLogprobs));
    if (generation.sampling.top_logprobs > 0 && !generation.logprobs) {
      top->Refuse("0 unless \"return_logprob\" is true");
    }
  }
  request.text_in_logprobs = body.Bool("return_text_in_logprobs", false);
}

}  // namespace

GenerateRequest ParseGenerateRequest(std::string_view body, const GenerationConfig& defaults,
                                     const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  GenerateRequest request;
  const auto text = fields.Find("text");
  const auto ids = fields.Find("input_ids");
  if (text && ids) ids->Refuse("null beside \"text\"");
  if (!text && !ids) throw BadField("text", "text: missing, and so is input_ids");
  if (text) {
    request.is_list = text->value().is_array();
    if (request.is_list && !text->value().empty() && !text->value().front().is_string()) {
      text->Refuse("a string or an array of strings");
    }
    request.prompts = ReadPrompts(*text, limits);
  } else {
    if (!ids->value().is_array() || ids->value().empty() || ids->value().front().is_string()) {
      ids->Refuse("an array of token ids, or of such arrays");
    }
    request.is_list = ids->value().front().is_array();
    request.prompts = ReadPrompts(*ids, limits);
  }
  request.generation.sampling = defaults.sampling;
  request.generation.max_tokens =
      std::min(kGenerateTokens, limits.max_output_tokens.value_or(kMostTokens));
  if (const auto params = fields.Find("sampling_params")) {
    ReadSamplingParams(params->Object(), limits, request.generation);
  }
  request.generation.stream = fields.Bool("stream", false);
  request.generation.token_ids = true;  // always given
  ReadGenerateLogprobs(fields, request);
  ReadScheduling(fields, request.generation);
  RequireNeutralGenerateFields(fields);
  fields.RefuseUnknown();
  return request;
}

// ---- The same, as JSON Schema ----

namespace {

OrderedJson TokensSchema() {
  return {{"type", "array"}, {"items", IntSchema(0, kMostInt32)}, {"minItems", 1}};
}

OrderedJson GenerationSchemas(const RequestLimits& limits) {
  OrderedJson fields = NeutralSchemas(NeutralFor::kBoth);
  fields.update(ConstraintSchemas());
  fields.update(EngineSchemas());
  fields["return_token_ids"] = {{"type", "boolean"}};
  fields["n"] = IntSchema(1, limits.max_n);
  fields["stream_options"] = {{"type", "object"},
                              {"properties",
                               {{"include_usage", {{"type", {"boolean", "null"}}}},
                                {"continuous_usage_stats", {{"type", {"boolean", "null"}}}},
                                {"include_obfuscation", {{"enum", {false, nullptr}}}}}},
                              {"additionalProperties", static_cast<bool>(limits.ignore_unknown)}};
  fields["stop"] = {{"anyOf", {TextSchema(1), StopTextsSchema()}}};
  fields["stop_token_ids"] = StopTokensSchema();
  const int64_t most = limits.max_output_tokens.value_or(std::numeric_limits<int64_t>::max());
  fields["max_tokens"] = IntSchema(0, most);
  fields["max_completion_tokens"] = IntSchema(0, most);
  fields["min_tokens"] = IntSchema(0, kMostTokens);
  return fields;
}

}  // namespace

OrderedJson ChatCompletionSchema(const RequestLimits& limits) {
  OrderedJson fields = GenerationSchemas(limits);
  fields.update(NeutralSchemas(NeutralFor::kChat));
  fields["max_tokens"]["minimum"] = 1;
  fields["max_completion_tokens"]["minimum"] = 1;
  fields["logprobs"] = {{"type", "boolean"}};
  fields["top_logprobs"] = IntSchema(0, kMaxTopLogprobs);
  fields.update(ConversationSchemas(limits));
  fields.update(ToolSchemas(limits));
  return BodySchema(std::move(fields), {"messages"}, limits);
}

OrderedJson CompletionSchema(const RequestLimits& limits) {
  OrderedJson fields = GenerationSchemas(limits);
  fields.update(NeutralSchemas(NeutralFor::kCompletion));
  fields["echo"] = {{"type", "boolean"}};
  fields["logprobs"] = IntSchema(0, kMaxTopLogprobs);
  fields["best_of"] = IntSchema(1, limits.max_n);
  const auto list = [&](OrderedJson item) -> OrderedJson {
    return {{"type", "array"},
            {"items", std::move(item)},
            {"minItems", 1},
            {"maxItems", limits.max_prompts}};
  };
  fields["prompt"] = {
      {"anyOf", {TextSchema(1), TokensSchema(), list(TextSchema(1)), list(TokensSchema())}}};
  return BodySchema(std::move(fields), {"prompt"}, limits);
}

OrderedJson GenerateSchema(const RequestLimits& limits) {
  const OrderedJson all = GenerationSchemas(limits);
  OrderedJson params = NeutralSchemas(NeutralFor::kSamplingParams);
  params.update(SamplingConstraintSchemas());
  params.update(SamplingSchemas());
  for (const char* name : {"n", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens"}) {
    params[name] = all[name];
  }
  params["no_stop_trim"] = {{"type", "boolean"}};
  params["sampling_seed"] = all["seed"];
  params["max_new_tokens"] = all["max_tokens"];
  params["max_new_tokens"]["minimum"] = 1;
  params["min_new_tokens"] = all["min_tokens"];
  OrderedJson fields = NeutralSchemas(NeutralFor::kGenerate);
  for (const char* name : {"stream", "priority", "cache_salt", "timeout"}) fields[name] = all[name];
  for (const char* name : {"return_logprob", "return_text_in_logprobs"}) {
    fields[name] = {{"type", "boolean"}};
  }
  fields["top_logprobs_num"] = IntSchema(0, kMaxTopLogprobs);
  fields["sampling_params"] = BodySchema(std::move(params), {}, limits);
  OrderedJson forms = OrderedJson::array();
  const auto add = [&](const char* name, const OrderedJson& item) {
    OrderedJson form = fields;
    for (const char* other : {"text", "input_ids"}) form[other] = {{"type", "null"}};
    form[name] = {{"anyOf",
                   {item,
                    {{"type", "array"},
                     {"items", item},
                     {"minItems", 1},
                     {"maxItems", limits.max_prompts}}}}};
    forms.push_back(BodySchema(std::move(form), {name}, limits));
  };
  add("text", TextSchema(1));
  add("input_ids", TokensSchema());
  return {{"anyOf", std::move(forms)}};
}

}  // namespace quire
