// Answers of /v1/chat/completions, /v1/completions and /v1/models, as JSON text.
//
// The answers to one HTTP request are its choices: number n * prompt + sample. finish_reason is "stop"
// or "length", or "tool_calls" instead of "stop" if there are calls; an answer that ends as kCancelled, kDeadline or kFailed makes the whole request an
// ApiError (FromFinish), which a stream sends as its last data, without [DONE].
//
// Tokens in logprobs. The log-probabilities are the model's own (step/step.h); one below -9999 is
// -9999, as OpenAI writes what has no number. There is one for every token that usage counts: so also
// for a stop token, for those whose text a stop string took away, and those of the reasoning. Clients
// rely on it: lm-eval takes the last entry for the one token that it let the model draw.
//   chat         `token` is the token's text, with U+FFFD for what is not UTF-8 by itself; `bytes` are
//                exact.
//   completions  a token that is not UTF-8 by itself is written "bytes:\xe2\x80", as OpenAI did: these
//                are keys of top_logprobs, and must differ. text_offset counts characters (Unicode code
//                points) of the text, from the start of the choice's.
// An id that the tokenizer does not know is "token_id:7", without bytes.
//
// Ids (return_token_ids). A choice has "token_ids", of every token that usage counts, and a chunk those
// that came with it. "prompt_token_ids" are the answer's for chat and the choice's for completions; of
// a stream, with the first chunk of a choice.
#ifndef QUIRE_SERVE_OPENAI_RESPONSE_H_
#define QUIRE_SERVE_OPENAI_RESPONSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "serve/api_error.h"
#include "serve/openai_request.h"
#include "serve/reply_pieces.h"
#include "serve/response_logprobs.h"
#include "text/tokenizer.h"
#include "text/tools.h"
#include "textgen/text_engine.h"

namespace quire {

// kGenerate is SGLang's. Answers of the last two are made by answer_blocks.h.
enum class Endpoint { kChat, kCompletion, kGenerate, kMessages, kResponses };

inline constexpr std::string_view kJsonContentType = "application/json";

int64_t SecondsSince1970();

// "chatcmpl-0123456789abcdef...", "cmpl-...", "gen-...", "msg_..." or "resp_..."; `random` makes it differ
// from others.
std::string MakeAnswerId(Endpoint endpoint, uint64_t random_high, uint64_t random_low);

struct AnswerPrompt {
  std::string text = {};             // what echo gives back; not read for chat
  std::vector<int32_t> tokens = {};  // as the engine got them
};

// What the answers look like. `tokenizer` is borrowed.
struct AnswerShape {
  Endpoint endpoint = Endpoint::kChat;
  std::string id = {};
  int64_t created = 0;  // seconds since 1970
  std::string model = {};
  std::string system_fingerprint = {};
  std::vector<AnswerPrompt> prompts = {};  // chat: one
  int32_t n = 1;
  bool logprobs = false;
  int32_t top_logprobs = 0;
  bool token_ids = false;  // GenerationFields::token_ids
  bool echo = false;
  bool is_list = false;           // of /generate: answers come as a list
  bool text_in_logprobs = false;  // of /generate: tokens' texts beside their ids
  bool prompt_only = false;  // GenerationFields::prompt_only: the one token is not shown or counted
  bool include_usage = false;     // of a stream
  bool continuous_usage = false;  // with every chunk of it
  bool skip_special_tokens = true;
  const Tokenizer* tokenizer = nullptr;
  // Of /v1/responses: what the answer repeats of its request, by name.
  OrderedJson request = OrderedJson::object();
};
// Everything but id, created, model, fingerprint, prompts and tokenizer.
AnswerShape MakeAnswerShape(const ChatCompletionRequest& request);
AnswerShape MakeAnswerShape(const CompletionRequest& request);
AnswerShape MakeAnswerShape(const GenerateRequest& request);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts
};

namespace internal {
class Choices;
}  // namespace internal

// Takes the events of all prompts, in any order between prompts, and gives one answer. Used by one
// thread at a time.
class WholeAnswer {
 public:
  explicit WholeAnswer(AnswerShape shape);
  ~WholeAnswer();

  // `prompt` is the number of the prompt in the shape.
  void Take(size_t prompt, const TextEvent& event);

  bool done() const;  // every answer of every prompt has ended
  // The first that went wrong; the other prompts may as well be cancelled.
  const std::optional<ApiError>& error() const;
  Usage usage() const;
  // Requires done() and no error(). As it is written: an answer with 20 alternatives has 1 KB a token.
  // Borrows from this.
  ReplyPieces Json() const;

 private:
  class Writer;
  struct ChoiceText {
    std::string reasoning = {};
    std::string content = {};
    std::string finish_reason = {};
    std::optional<std::string> stopped_by = {};
    std::vector<ScoredToken> tokens = {};
    std::vector<int32_t> token_ids = {};
    std::vector<ToolCall> calls = {};
  };

  std::unique_ptr<internal::Choices> choices_;
  std::vector<ChoiceText> texts_;
};

// The same, as chunks: the data of a server-sent event each, without [DONE].
class StreamedAnswer {
 public:
  explicit StreamedAnswer(AnswerShape shape);
  ~StreamedAnswer();

  // The chunks that this event makes, often none: a chat's first has the role; text that is empty, with
  // no logprobs, makes none; the last event of all is followed by the usage, if asked for. None any
  // more once there is an error().
  std::vector<std::string> Take(size_t prompt, const TextEvent& event);

  bool done() const;
  const std::optional<ApiError>& error() const;
  Usage usage() const;
  // What a stream has behind all chunks: [DONE], or the error. Requires done() or error().
  std::string Ending() const;

 private:
  std::unique_ptr<internal::Choices> choices_;
  // Of /generate, whose chunks have all that came so far.
  struct Generated {
    std::string text = {};
    std::string ids = {};  // as JSON writes them
  };
  std::vector<Generated> generated_;
};

// {"object": "list", "data": [{"id": model, "object": "model", ...}]}
struct ServedModel {
  std::string id = {};
  int64_t created = 0;
  int64_t context = 0;  // as max_model_len
};
std::string ModelsJson(const ServedModel& model);  // GET /v1/models
std::string ModelJson(const ServedModel& model);   // GET /v1/models/{id}

}  // namespace quire

#endif  // QUIRE_SERVE_OPENAI_RESPONSE_H_
