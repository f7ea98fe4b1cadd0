// Bodies of /v1/chat/completions and /v1/completions, parsed.
//
// Every refusal is an ApiError of status 400 whose message names the field, the expected and the
// actual. null counts as absent. A field that we do not know is refused by name; one that we know of
// and do not do (audio, ...) is accepted only with the value that asks for nothing:
//
//   functions []                     function_call "none"
//   modalities ["text"]              store false
//   service_tier "auto", "default"   suffix ""                           use_beam_search false
//   audio, prediction, reasoning_effort, verbosity, web_search_options, prompt_logprobs   only null
//   user, safety_identifier, prompt_cache_key: any text, metadata: any object, since they change no answer
//
// Ranges:
//   temperature 0..2 (0: greedy)   top_p above 0, up to 1    top_k -1 (all), 0 (all) or more
//   min_p 0..1                     presence_penalty, frequency_penalty -2..2
//   repetition_penalty 0.0001..10000                          seed any int64; absent: drawn
//   n 1..RequestLimits::max_n      timeout above 0, up to 86400 seconds
//   logit_bias {"token id": -100..100}, at most 1024          priority as the engine allows;
//                                                             higher goes first
//   stop: a text or up to 16, each of 1..1024 bytes           cache_salt 1..1024 bytes
//   stop_token_ids: up to 1024
//   max_tokens, or max_completion_tokens: 1 or more; both only if equal. Absent: for chat up
//     to the end of the context, for completions 16, as OpenAI does. 0 is allowed for completions with
//     echo: nothing is drawn, and the prompt comes back, with its log-probabilities if asked for.
//   min_tokens 0..max_tokens
//   logprobs: chat true/false, with top_logprobs 0..20; completions 0..20
//   continue_final_message: only where the last message is an assistant's, without add_generation_prompt
#ifndef QUIRE_SERVE_OPENAI_REQUEST_H_
#define QUIRE_SERVE_OPENAI_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/api_error.h"
#include "serve/conversation.h"
#include "serve/generation_fields.h"
#include "serve/request_fields.h"
#include "serve/tool_fields.h"
#include "textgen/generation_config.h"

namespace quire {

struct ChatCompletionRequest {
  GenerationFields generation = {};
  Conversation conversation = {};
  ToolFields tools = {};  // tool_fields.h
};

using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;  // neither is empty

struct CompletionRequest {
  GenerationFields generation = {};
  std::vector<CompletionPrompt> prompts = {};  // at least one
  bool echo = false;
};

// SGLang's /generate: {"text": a text or texts} or {"input_ids": tokens or lists of them};
// "sampling_params": {max_new_tokens (128), min_new_tokens, n, temperature, top_p, top_k, min_p, the
// penalties, logit_bias, stop, stop_token_ids, no_stop_trim, ignore_eos, skip_special_tokens,
// sampling_seed, json_schema, regex, ebnf}; stream, rid, priority; return_logprob, not of a stream,
// which would send all of them again with every token, with top_logprobs_num 0..20 and
// return_text_in_logprobs. What else SGLang has is accepted only with the value that asks for nothing.
struct GenerateRequest {
  GenerationFields generation = {};
  std::vector<CompletionPrompt> prompts = {};  // at least one
  bool is_list = false;                        // the prompts came as a list, and so go the answers
  bool text_in_logprobs = false;
};

ChatCompletionRequest ParseChatCompletionRequest(std::string_view body,
                                                 const GenerationConfig& defaults,
                                                 const RequestLimits& limits = {});
CompletionRequest ParseCompletionRequest(std::string_view body, const GenerationConfig& defaults,
                                         const RequestLimits& limits = {});

GenerateRequest ParseGenerateRequest(std::string_view body, const GenerationConfig& defaults,
                                     const RequestLimits& limits = {});

// JSON Schemas of the bodies, made from the tables and limits that the functions above check with.
// Nothing that they allow is refused for its type or range alone, but what needs the model, or other
// fields.
OrderedJson ChatCompletionSchema(const RequestLimits& limits = {});
OrderedJson CompletionSchema(const RequestLimits& limits = {});
OrderedJson GenerateSchema(const RequestLimits& limits = {});

}  // namespace quire

#endif  // QUIRE_SERVE_OPENAI_REQUEST_H_
