// Answers of Anthropic's /v1/messages.
//
// The message has a block {"type": "text"} for text, {"type": "thinking"} for what was thought, with an
// empty signature, since nobody else's thoughts come back, and {"type": "tool_use"} for each call; arguments
// that are no JSON object are {"INVALID_JSON": the text}, as Anthropic proposes. stop_reason is "end_turn",
// "tool_use", "max_tokens" (the context's end too) or "stop_sequence". input_tokens are those that the cache did not have;
// cache_read_input_tokens are the others.
//
// A stream has message_start with the first token, content_block_start, content_block_delta (text_delta,
// thinking_delta, input_json_delta) and content_block_stop for each block in turn, message_delta with stop_reason and usage,
// message_stop; where it fails, "error" last.
#ifndef QUIRE_SERVE_MESSAGES_ANSWER_H_
#define QUIRE_SERVE_MESSAGES_ANSWER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "serve/answer_blocks.h"

namespace quire {

class MessagesAnswer final : public BlockAnswer {
 public:
  MessagesAnswer(AnswerShape shape, Delivery delivery) : BlockAnswer(std::move(shape), delivery) {}

 private:
  std::string WholeJson() const override;
  void AddBeginning(std::vector<SseEvent>& events) override;
  void AddStep(const BlockStep& step, std::vector<SseEvent>& events) override;
  void AddEnd(std::vector<SseEvent>& events) override;
  void AddFailure(std::vector<SseEvent>& events) override;

  OrderedJson MessageJson() const;  // as far as it has come
  OrderedJson StopJson() const;
  OrderedJson UsageJson() const;
};

// {"input_tokens": 7}: the answer of /v1/messages/count_tokens.
std::string CountedTokensJson(int64_t tokens);

}  // namespace quire

#endif  // QUIRE_SERVE_MESSAGES_ANSWER_H_
