// Answers of SGLang's /generate, as JSON.
#ifndef QUIRE_SERVE_GENERATE_RESPONSE_H_
#define QUIRE_SERVE_GENERATE_RESPONSE_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "serve/openai_response.h"
#include "serve/reply_pieces.h"
#include "serve/response_logprobs.h"

namespace quire {

// One answer, whole or as far as it has come: {"text", "output_ids", "meta_info": {"id",
// "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"}}, and "index" if there are
// more answers. If log-probabilities are asked for, meta_info has "output_token_logprobs", of every
// token [logprob, id, text or null], their number, and "output_top_logprobs" if there are alternatives;
// "input_token_logprobs" is [], as SGLang's is unless a place to start is given.
struct GeneratedText {
  size_t index = 0;
  std::string text = {};
  std::string output_ids = {};                    // as JSON writes them, with commas between
  std::optional<std::string> finish_reason = {};  // "stop", "length"; nullopt: it goes on
  std::optional<std::string> stopped_by = {};     // the stop string
  std::span<const ScoredToken> tokens = {};       // if log-probabilities are asked for
  Usage usage = {};                               // of this answer
};

// Without log-probabilities.
std::string GeneratedTextJson(const AnswerShape& shape, const GeneratedText& generated);
// With them, if the shape says so. Borrows the shape and the tokens.
ReplyPieces GeneratedTextPieces(const AnswerShape& shape, const GeneratedText& generated);

}  // namespace quire

#endif  // QUIRE_SERVE_GENERATE_RESPONSE_H_
