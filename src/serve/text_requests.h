// /tokenize, /detokenize and /apply-template: bodies parsed, answers written. Names as in llama.cpp's
// server, and, where vLLM has others for the same, those too. Refusals as in openai_request.h. Replies
// borrow the tokenizer.
#ifndef QUIRE_SERVE_TEXT_REQUESTS_H_
#define QUIRE_SERVE_TEXT_REQUESTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai_request.h"
#include "serve/reply_pieces.h"
#include "text/tokenizer.h"

namespace quire {

// {"content": "text"}, {"prompt": "text"} or {"messages": [...]} (with chat_template_kwargs, tools,
// add_generation_prompt and continue_final_message), one of them, "" allowed; add_special_tokens (or
// add_special), absent: as both servers do, true for prompt and false for the others; parse_special
// (true); with_pieces (false); model.
struct TokenizeRequest {
  std::string text = {};
  std::optional<Conversation> conversation = {};  // in place of the text
  EncodeOptions options = {};
  bool with_pieces = false;
  std::optional<std::string> model = {};
};
TokenizeRequest ParseTokenizeRequest(std::string_view body, const RequestLimits& limits = {});
// {"tokens": [1, 2], "count": 2, "max_model_len": 4096}; with pieces {"tokens": [{"id": 1, "piece": "a"},
// ...]}, where a piece that is not UTF-8 by itself is an array of its bytes.
ReplyPieces TokenizeReply(std::vector<int32_t> tokens, const Tokenizer& tokenizer, bool with_pieces,
                          int64_t context);

// {"tokens": [1, 2]}; skip_special_tokens (false, so that it undoes /tokenize); model.
struct DetokenizeRequest {
  std::vector<int32_t> tokens = {};
  DecodeOptions options = {.skip_special_tokens = false};
  std::optional<std::string> model = {};
};
DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits = {});
// {"content": "text", "prompt": "text", "text": "text"}: as llama.cpp, vLLM and SGLang call it.
ReplyPieces DetokenizeReply(std::vector<int32_t> tokens, const DecodeOptions& options,
                            const Tokenizer& tokenizer);

// {"messages": [...]}; chat_template_kwargs, tools, add_generation_prompt, continue_final_message, model.
struct ApplyTemplateRequest {
  Conversation conversation = {};
  std::optional<std::string> model = {};
};
ApplyTemplateRequest ParseApplyTemplateRequest(std::string_view body,
                                               const RequestLimits& limits = {});
// {"prompt": "text"}
ReplyPieces ApplyTemplateReply(std::string prompt);

// JSON Schemas of the three bodies.
OrderedJson TokenizeSchema(const RequestLimits& limits = {});
OrderedJson DetokenizeSchema(const RequestLimits& limits = {});
OrderedJson ApplyTemplateSchema(const RequestLimits& limits = {});

}  // namespace quire

#endif  // QUIRE_SERVE_TEXT_REQUESTS_H_
