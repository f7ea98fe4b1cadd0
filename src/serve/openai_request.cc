#include "serve/openai_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/json.h"
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

void ReadSampling(RequestFields& body, GenerationFields& out) {
  SamplingParams& sampling = out.sampling;
  const auto read = [&](const char* name, double min, double max, float& target) {
    target = static_cast<float>(body.Number(name, min, max, target));
  };
  read("temperature", 0, 2, sampling.temperature);
  read("min_p", 0, 1, sampling.min_p);
  read("presence_penalty", -2, 2, sampling.presence_penalty);
  read("frequency_penalty", -2, 2, sampling.frequency_penalty);
  read("repetition_penalty", 1e-4, 1e4, sampling.repetition_penalty);
  if (const auto top_p = body.Find("top_p")) {
    const double number = top_p->value().is_number() ? top_p->value().get<double>() : 0;
    sampling.top_p = static_cast<float>(number <= 1 ? number : 0);
    if (!(sampling.top_p > 0)) top_p->Refuse("a number above 0, up to 1");
  }
  if (const auto top_k = body.Find("top_k")) {
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(0, top_k->Int(-1, kMostInt32)));
  }
  if (const auto seed = body.Find("seed")) {
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
  out.ignore_eos = body.Bool("ignore_eos", false);
}

void ReadStream(RequestFields& body, GenerationFields& out) {
  out.stream = body.Bool("stream", false);
  const auto options = body.Find("stream_options");
  if (!options) return;
  if (!out.stream) options->Refuse("null unless \"stream\" is true");
  RequestFields fields = options->Object();
  out.include_usage = fields.Bool("include_usage", false);
  for (const char* name : {"include_obfuscation", "continuous_usage_stats"}) {
    const auto field = fields.Find(name);
    if (field && field->Bool()) field->Refuse("false (not supported)");
  }
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
  ReadStream(body, out);
  ReadSampling(body, out);
  ReadLogitBias(body, out);
  ReadStops(body, out);
  out.skip_special_tokens = body.Bool("skip_special_tokens", true);
  ReadScheduling(body, out);
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
  RequestFields fields(json, "");
  ChatCompletionRequest request;
  request.conversation = ReadConversation(fields);
  request.generation = ReadGeneration(fields, defaults, limits);
  ReadMaxTokens(fields, 1, limits, request.generation);
  if (!request.generation.max_tokens) request.generation.max_tokens = limits.max_output_tokens;
  ReadMinTokens(fields, request.generation);
  ReadChatLogprobs(fields, request.generation);
  RequireNeutralChatFields(fields);
  fields.RefuseUnknown();
  return request;
}

CompletionRequest ParseCompletionRequest(std::string_view body, const GenerationConfig& defaults,
                                         const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "");
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

TextRequest MakeTextRequest(const GenerationFields& fields, std::vector<int32_t> prompt,
                            std::optional<ReasoningStart> reasoning, const Arrival& arrival) {
  TextRequest request;
  request.ignore_eos = fields.ignore_eos;
  request.stop = fields.stop;
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
