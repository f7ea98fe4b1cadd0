#include "serve/generation_fields.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kMaxStops = 16;  // OpenAI: 4; people use more
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxSaltBytes = 1024;
constexpr double kMaxTimeout = 86400;

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
};

// The token of a key of logit_bias: decimal digits.
std::optional<int32_t> ReadTokenKey(const std::string& key) {
  constexpr size_t kMaxDigits = 10;
  if (key.empty() || key.size() > kMaxDigits) return std::nullopt;
  if (key.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int64_t token = std::stoll(key);
  if (token > kMostInt32) return std::nullopt;
  return static_cast<int32_t>(token);
}

}  // namespace

void ReadSampling(RequestFields& body, GenerationFields& out, const char* seed_name) {
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

std::vector<std::string> ReadStopTexts(const RequestField& field) {
  if (!field.value().is_array() || field.value().size() > kMaxStops) {
    field.Refuse(fmt::format("an array of at most {} strings", kMaxStops));
  }
  std::vector<std::string> texts;
  for (const RequestField& text : field.Array()) texts.push_back(text.String(1, kMaxStopBytes));
  return texts;
}

void ReadStops(RequestFields& body, GenerationFields& out) {
  if (const auto stop = body.Find("stop")) {
    if (stop->value().is_string()) {
      out.stop = {stop->String(1, kMaxStopBytes)};
    } else if (stop->value().is_array() && stop->value().size() <= kMaxStops) {
      out.stop = ReadStopTexts(*stop);
    } else {
      stop->Refuse(fmt::format("a string or an array of at most {} strings", kMaxStops));
    }
  }
  ReadStopTokens(body, out);
}

void ReadStopTokens(RequestFields& body, GenerationFields& out) {
  if (const auto tokens = body.Find("stop_token_ids")) {
    if (std::ssize(tokens->value()) > kMaxRequestStops) {
      tokens->Refuse(fmt::format("an array of at most {} token ids", kMaxRequestStops));
    }
    out.stop_token_ids = tokens->Tokens();
  }
}

std::optional<int64_t> ReadTokenLimit(RequestFields& body, const char* name, int64_t least,
                                      const RequestLimits& limits) {
  const auto field = body.Find(name);
  if (!field) return std::nullopt;
  const int64_t tokens = field->Int(least, std::numeric_limits<int64_t>::max());
  if (limits.max_output_tokens && tokens > *limits.max_output_tokens) {
    field->Refuse(fmt::format("at most {}, this server's limit", *limits.max_output_tokens));
  }
  return std::min(tokens, kMostTokens);
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

GenerationFields ReadEngineFields(RequestFields& body, const GenerationConfig& defaults) {
  GenerationFields out;
  out.sampling = defaults.sampling;
  if (const auto model = body.Find("model")) out.model = model->String();
  for (const SwitchField& field : kSwitchFields) {
    out.*field.target = body.Bool(field.name, out.*field.target);
  }
  ReadSampling(body, out, "seed");
  ReadLogitBias(body, out);
  ReadScheduling(body, out);
  return out;
}

// ---- The same, as JSON Schema ----

OrderedJson IntSchema(int64_t min, int64_t max) {
  OrderedJson schema = {{"type", "integer"}, {"minimum", min}};
  if (max < std::numeric_limits<int64_t>::max()) schema["maximum"] = max;
  return schema;
}

OrderedJson TextSchema(size_t min_bytes) { return {{"type", "string"}, {"minLength", min_bytes}}; }

OrderedJson StopTextsSchema() {
  return {{"type", "array"}, {"items", TextSchema(1)}, {"maxItems", kMaxStops}};
}

OrderedJson StopTokensSchema() {
  return {{"type", "array"}, {"items", IntSchema(0, kMostInt32)}, {"maxItems", kMaxRequestStops}};
}

OrderedJson SamplingSchemas() {
  OrderedJson fields = OrderedJson::object();
  for (const SamplingField& field : kSamplingFields) {
    fields[field.name] = {{"type", "number"}, {"minimum", field.min}, {"maximum", field.max}};
  }
  fields["top_p"] = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}};
  fields["top_k"] = IntSchema(-1, kMostInt32);
  fields["logit_bias"] = {
      {"type", "object"},
      {"maxProperties", kMaxRequestBiases},
      {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}};
  return fields;
}

OrderedJson EngineSchemas() {
  OrderedJson fields = SamplingSchemas();
  for (const SwitchField& field : kSwitchFields) fields[field.name] = {{"type", "boolean"}};
  fields["model"] = {{"type", "string"}};
  fields["seed"] = IntSchema(std::numeric_limits<int64_t>::min());
  fields["priority"] = IntSchema(std::numeric_limits<int32_t>::min(), kMostInt32);
  fields["cache_salt"] = TextSchema(1);
  fields["timeout"] = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", kMaxTimeout}};
  return fields;
}

OrderedJson BodySchema(OrderedJson fields, std::initializer_list<std::string_view> required,
                       const RequestLimits& limits) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson names = OrderedJson::array();
  for (const auto& [name, schema] : fields.items()) {
    const bool is_required = std::ranges::find(required, name) != required.end();
    if (is_required) names.push_back(name);
    properties[name] = is_required ? schema : OrderedJson{{"anyOf", {schema, {{"type", "null"}}}}};
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(names)},
          {"additionalProperties", static_cast<bool>(limits.ignore_unknown)}};
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
