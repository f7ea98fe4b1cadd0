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

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostTokens = int64_t{1} << 30;  // as Request::max_tokens
constexpr size_t kMaxStops = 16;                   // OpenAI: 4; people use more
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxSaltBytes = 1024;
constexpr double kMaxTimeout = 86400;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default

struct SamplingField {
  const char* name;
  double min;
  double max;
  float SamplingParams::*target;
};
constexpr SamplingField kSamplingFields[] = {
    {"temperature", 0, 2, &SamplingParams::temperature},
    {"min_p", 0, 1, &SamplingParams::min_p},
    {"presence_penalty", -2, 2, &SamplingParams::presence_penalty},
    {"frequency_penalty", -2, 2, &SamplingParams::frequency_penalty},
    {"repetition_penalty", 1e-4, 1e4, &SamplingParams::repetition_penalty},
};

// Read where they belong.
struct SwitchField {
  const char* name;
  bool GenerationFields::*target;
};
constexpr SwitchField kSwitchFields[] = {
    {"stream", &GenerationFields::stream},
    {"ignore_eos", &GenerationFields::ignore_eos},
    {"skip_special_tokens", &GenerationFields::skip_special_tokens},
    {"include_stop_str_in_output", &GenerationFields::include_stop},
    {"return_token_ids", &GenerationFields::token_ids},
};

void ReadSwitches(RequestFields& body, GenerationFields& out) {
  for (const SwitchField& field : kSwitchFields) {
    out.*field.target = body.Bool(field.name, out.*field.target);
  }
}

void ReadSampling(RequestFields& body, GenerationFields& out, const char* seed_name = "seed") {
  SamplingParams& sampling = out.sampling;
  for (const SamplingField& field : kSamplingFields) {
    float& target = sampling.*field.target;
    target = static_cast<float>(body.Number(field.name, field.min, field.max, target));
  }
  if (const auto top_p = body.Find("top_p")) {
    const double number = top_p->value().is_number() ? top_p->value().get<double>() : 0;
    sampling.top_p = static_cast<float>(number <= 1 ? number : 0);
    if (!(sampling.top_p > 0)) top_p->Refuse("a number above 0, up to 1");
  }
  if (const auto top_k = body.Find("top_k")) {
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, top_k->Int(-1, kMostInt32)));
  }
  if (const auto seed = body.Find(seed_name)) {
    out.seed = static_cast<uint64_t>(
        seed->Int(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  }
}

// The token of a key of logit_bias: decimal digits.
std::optional<int32_t> ReadTokenKey(const std::string& key) {
  constexpr size_t kMaxDigits = 10;
  if (key.empty() || key.size() > kMaxDigits) return std::nullopt;
  if (key.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t token = std::stoll(key);
  if (token > kMostInt32) return std::nullopt;
  return static_cast<int32_t>(token);
}

void ReadLogitBias(RequestFields& body, GenerationFields& out) {
  const auto biases = body.Find("logit_bias");
  if (!biases) return;
  if (!biases->value().is_object() || std::ssize(biases->value()) > kMaxRequestBiases) {
    biases->Refuse(fmt::format("an object of at most {} token ids", kMaxRequestBiases));
  }
  for (const auto& [key, value] : biases->value().items()) {
    const std::string path = fmt::format("logit_bias.{}", QuoteForMessage(key));
    const std::optional<int32_t> token = ReadTokenKey(key);
    if (!token) throw BadField(path, path + ": expected a token id as the key");
    const double bias = RequestField(value, path).Number(-100, 100);
    out.logit_bias.push_back({.token = *token, .bias = static_cast<float>(bias)});
  }
}

void ReadStops(RequestFields& body, GenerationFields& out) {
  if (const auto stop = body.Find("stop")) {
    if (stop->value().is_string()) {
      out.stop.push_back(stop->String(1, kMaxStopBytes));
    } else if (stop->value().is_array() && stop->value().size() <= kMaxStops) {
      for (const RequestField& text : stop->Array()) {
        out.stop.push_back(text.String(1, kMaxStopBytes));
      }
    } else {
      stop->Refuse(fmt::format("a string or an array of at most {} strings", kMaxStops));
    }
  }
  if (const auto tokens = body.Find("stop_token_ids")) {
    if (std::ssize(tokens->value()) > kMaxRequestStops) {
      tokens->Refuse(fmt::format("an array of at most {} token ids", kMaxRequestStops));
    }
    out.stop_token_ids = tokens->Tokens();
  }
}

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
  const auto read = [&](const char* name) -> std::optional<int64_t> {
    const auto field = body.Find(name);
    if (!field) return std::nullopt;
    const int64_t tokens = field->Int(least, std::numeric_limits<int64_t>::max());
    if (limits.max_output_tokens && tokens > *limits.max_output_tokens) {
      field->Refuse(fmt::format("at most {}, this server's limit", *limits.max_output_tokens));
    }
    return std::min(tokens, kMostTokens);
  };
  const std::optional<int64_t> older = read("max_tokens");
  const std::optional<int64_t> newer = read("max_completion_tokens");
  if (older && newer && *older != *newer) {
    throw BadField(
        "max_completion_tokens",
        fmt::format("max_completion_tokens: expected {}, as max_tokens, got {}", *older, *newer));
  }
  out.max_tokens = older ? older : newer;
}

void ReadMinTokens(RequestFields& body, GenerationFields& out) {
  const auto field = body.Find("min_tokens");
  if (!field) return;
  out.min_tokens = field->Int(0, kMostTokens);
  if (out.max_tokens && out.min_tokens > *out.max_tokens) {
    field->Refuse(fmt::format("0..{} (max_tokens)", *out.max_tokens));
  }
}

void ReadScheduling(RequestFields& body, GenerationFields& out) {
  out.priority = static_cast<int32_t>(
      body.Int("priority", std::numeric_limits<int32_t>::min(), kMostInt32, 0));
  if (const auto salt = body.Find("cache_salt")) out.cache_salt = salt->String(1, kMaxSaltBytes);
  if (const auto timeout = body.Find("timeout")) {
    const double seconds = timeout->value().is_number() ? timeout->value().get<double>() : 0;
    if (!(seconds > 0 && seconds <= kMaxTimeout)) {
      timeout->Refuse(fmt::format("a number of seconds above 0, up to {}", kMaxTimeout));
    }
    // Rounded up: 0 would have passed before the request began.
    out.timeout =
        std::chrono::ceil<std::chrono::microseconds>(std::chrono::duration<double>(seconds));
  }
}

// All but the length of the answer and what is asked for about its tokens.
GenerationFields ReadGeneration(RequestFields& body, const GenerationConfig& defaults,
                                const RequestLimits& limits) {
  GenerationFields out;
  out.sampling = defaults.sampling;
  if (const auto model = body.Find("model")) out.model = model->String();
  out.n = static_cast<int32_t>(body.Int("n", 1, limits.max_n, 1));
  ReadSwitches(body, out);
  ReadStream(body, out);
  ReadSampling(body, out);
  ReadLogitBias(body, out);
  ReadStops(body, out);
  ReadScheduling(body, out);
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

OrderedJson IntSchema(int64_t min, int64_t max = std::numeric_limits<int64_t>::max()) {
  OrderedJson schema = {{"type", "integer"}, {"minimum", min}};
  if (max < std::numeric_limits<int64_t>::max()) schema["maximum"] = max;
  return schema;
}

OrderedJson TextSchema(size_t min_bytes) { return {{"type", "string"}, {"minLength", min_bytes}}; }

OrderedJson TokensSchema() {
  return {{"type", "array"}, {"items", IntSchema(0, kMostInt32)}, {"minItems", 1}};
}

OrderedJson GenerationSchemas(const RequestLimits& limits) {
  OrderedJson fields = NeutralSchemas(NeutralFor::kBoth);
  fields.update(ConstraintSchemas());
  for (const SamplingField& field : kSamplingFields) {
    fields[field.name] = {{"type", "number"}, {"minimum", field.min}, {"maximum", field.max}};
  }
  for (const SwitchField& field : kSwitchFields) fields[field.name] = {{"type", "boolean"}};
  fields["model"] = {{"type", "string"}};
  fields["n"] = IntSchema(1, limits.max_n);
  fields["stream_options"] = {{"type", "object"},
                              {"properties",
                               {{"include_usage", {{"type", {"boolean", "null"}}}},
                                {"continuous_usage_stats", {{"type", {"boolean", "null"}}}},
                                {"include_obfuscation", {{"enum", {false, nullptr}}}}}},
                              {"additionalProperties", static_cast<bool>(limits.ignore_unknown)}};
  fields["top_p"] = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}};
  fields["top_k"] = IntSchema(-1, kMostInt32);
  fields["seed"] = IntSchema(std::numeric_limits<int64_t>::min());
  fields["logit_bias"] = {
      {"type", "object"},
      {"maxProperties", kMaxRequestBiases},
      {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}};
  fields["stop"] = {
      {"anyOf",
       {TextSchema(1), {{"type", "array"}, {"items", TextSchema(1)}, {"maxItems", kMaxStops}}}}};
  fields["stop_token_ids"] = {
      {"type", "array"}, {"items", IntSchema(0, kMostInt32)}, {"maxItems", kMaxRequestStops}};
  const int64_t most = limits.max_output_tokens.value_or(std::numeric_limits<int64_t>::max());
  fields["max_tokens"] = IntSchema(0, most);
  fields["max_completion_tokens"] = IntSchema(0, most);
  fields["min_tokens"] = IntSchema(0, kMostTokens);
  fields["priority"] = IntSchema(std::numeric_limits<int32_t>::min(), kMostInt32);
  fields["cache_salt"] = TextSchema(1);
  fields["timeout"] = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", kMaxTimeout}};
  return fields;
}

// Of a body: every field may be null, but those that are required.
OrderedJson BodySchema(OrderedJson fields, const char* required, const RequestLimits& limits) {
  OrderedJson properties = OrderedJson::object();
  for (const auto& [name, schema] : fields.items()) {
    properties[name] =
        name == required ? schema : OrderedJson{{"anyOf", {schema, {{"type", "null"}}}}};
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", *required == '\0' ? OrderedJson::array() : OrderedJson::array({required})},
          {"additionalProperties", static_cast<bool>(limits.ignore_unknown)}};
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
  return BodySchema(std::move(fields), "messages", limits);
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
  return BodySchema(std::move(fields), "prompt", limits);
}

OrderedJson GenerateSchema(const RequestLimits& limits) {
  const OrderedJson all = GenerationSchemas(limits);
  OrderedJson params = NeutralSchemas(NeutralFor::kSamplingParams);
  params.update(SamplingConstraintSchemas());
  for (const SamplingField& field : kSamplingFields) params[field.name] = all[field.name];
  for (const char* name : {"n", "top_p", "top_k", "logit_bias", "stop", "stop_token_ids",
                           "ignore_eos", "skip_special_tokens"}) {
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
  fields["sampling_params"] = BodySchema(std::move(params), "", limits);
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
    forms.push_back(BodySchema(std::move(form), name, limits));
  };
  add("text", TextSchema(1));
  add("input_ids", TokensSchema());
  return {{"anyOf", std::move(forms)}};
}

TextRequest MakeTextRequest(const GenerationFields& fields, std::vector<int32_t> prompt,
                            std::optional<ReasoningStart> reasoning, const Arrival& arrival) {
  TextRequest request;
  request.ignore_eos = fields.ignore_eos;
  request.stop = fields.stop;
  request.include_stop = fields.include_stop;
  request.skip_special_tokens = fields.skip_special_tokens;
  request.reasoning = reasoning;
  Request& tokens = request.tokens;
  tokens.prompt = std::move(prompt);
  tokens.sampling = fields.sampling;
  tokens.sampling.seed = fields.seed.value_or(arrival.seed);
  tokens.logit_bias = fields.logit_bias;
  tokens.num_samples = fields.n;
  tokens.min_tokens = fields.min_tokens;
  // The engine always draws one.
  if (fields.max_tokens) tokens.max_tokens = std::max<int64_t>(*fields.max_tokens, 1);
  tokens.stop_tokens = fields.stop_token_ids;
  tokens.score_prompt = fields.score_prompt;
  tokens.priority = fields.priority;
  tokens.cache_salt = fields.cache_salt;
  if (fields.timeout) tokens.deadline = arrival.now + *fields.timeout;
  return request;
}

}  // namespace quire
