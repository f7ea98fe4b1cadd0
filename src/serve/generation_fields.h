// What a request says about its answers, whatever the API: read, checked, described, and given to the
// engine. Ranges and refusals as in openai_request.h.
#ifndef QUIRE_SERVE_GENERATION_FIELDS_H_
#define QUIRE_SERVE_GENERATION_FIELDS_H_

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "io/json.h"
#include "serve/request_fields.h"
#include "step/sampling_params.h"
#include "text/reasoning.h"
#include "textgen/generation_config.h"
#include "textgen/text_constraint.h"
#include "textgen/text_engine.h"

namespace quire {

inline constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMostTokens = int64_t{1} << 30;  // as Request::max_tokens

struct GenerationFields {
  std::optional<std::string> model = {};
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;     // of a stream
  bool continuous_usage = false;  // with every chunk of it
  // The request's, or the model's where it says nothing; logit_bias is apart, seed is below.
  SamplingParams sampling = {};
  std::vector<LogitBias> logit_bias = {};
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> max_tokens = {};  // absent: to the end of the context; 0: see prompt_only
  int64_t min_tokens = 0;
  bool prompt_only = false;   // max_tokens 0: one token is drawn and not shown
  bool score_prompt = false;  // echo with logprobs
  bool logprobs = false;      // with sampling.top_logprobs alternatives
  bool token_ids = false;     // those of prompt and answer are given, too
  std::vector<std::string> stop = {};
  std::vector<int32_t> stop_token_ids = {};
  bool include_stop = false;  // what ends an answer is part of its text
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  int32_t priority = 0;
  std::string cache_salt = {};
  std::optional<std::chrono::microseconds> timeout = {};
  std::optional<TextConstraint> constraint = {};  // constraint_fields.h
};

// What every API takes by the same names: model, stream, how tokens are drawn (ReadSampling, with "seed",
// and ReadLogitBias), what special tokens do, and ReadScheduling. All of these throw ApiError.
GenerationFields ReadEngineFields(RequestFields& body, const GenerationConfig& defaults);

// temperature, top_p, top_k, min_p, the penalties, and the seed by its name.
void ReadSampling(RequestFields& body, GenerationFields& out, const char* seed_name);
void ReadLogitBias(RequestFields& body, GenerationFields& out);
// stop and stop_token_ids.
void ReadStops(RequestFields& body, GenerationFields& out);
void ReadStopTokens(RequestFields& body, GenerationFields& out);
std::vector<std::string> ReadStopTexts(const RequestField& field);
// The most tokens of an answer, if the field is there.
std::optional<int64_t> ReadTokenLimit(RequestFields& body, const char* name, int64_t least,
                                      const RequestLimits& limits);
void ReadMinTokens(RequestFields& body, GenerationFields& out);
// priority, cache_salt, timeout.
void ReadScheduling(RequestFields& body, GenerationFields& out);

// JSON Schemas: of these fields, by name, and of what they are made of.
OrderedJson EngineSchemas();
OrderedJson SamplingSchemas();  // without the seed, with logit_bias
OrderedJson StopTextsSchema();
OrderedJson StopTokensSchema();
OrderedJson IntSchema(int64_t min, int64_t max = std::numeric_limits<int64_t>::max());
OrderedJson TextSchema(size_t min_bytes);
// Of a body: every field may be null, but those that are required.
OrderedJson BodySchema(OrderedJson fields, std::initializer_list<std::string_view> required,
                       const RequestLimits& limits);

// What a request becomes when it is taken.
struct Arrival {
  EngineClock::time_point now = {};
  uint64_t seed = 0;  // for a request that gives none
};

// For the engine; it checks what needs the model (token ids, prompt against context) itself.
// `reasoning` as in TextRequest: for chat, ChatPrompt::reasoning; for completions, nullopt.
TextRequest MakeTextRequest(const GenerationFields& fields, std::vector<int32_t> prompt,
                            std::optional<ReasoningStart> reasoning, const Arrival& arrival);

}  // namespace quire

#endif  // QUIRE_SERVE_GENERATION_FIELDS_H_
