// Answers of OpenAI's /v1/responses, of which nothing is stored.
//
// The response has an item {"type": "reasoning"} for what was thought, whole, as its content,
// {"type": "message"} for text and {"type": "function_call"} for each call. status is "completed", or "incomplete" for the reason "max_output_tokens" (the
// context's end too). It repeats what its request said (AnswerShape::request).
//
// A stream numbers its events (sequence_number): response.created and response.in_progress with the first
// token; for each item in turn response.output_item.added, response.content_part.added,
// response.output_text.delta (of thoughts response.reasoning_text.delta) and .done,
// response.content_part.done, response.output_item.done; calls have no parts, but
// response.function_call_arguments.delta and .done; response.completed or response.incomplete with the
// whole. Where it fails, response.failed is the last.
#ifndef QUIRE_SERVE_RESPONSES_ANSWER_H_
#define QUIRE_SERVE_RESPONSES_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "serve/answer_blocks.h"

namespace quire {

class ResponsesAnswer final : public BlockAnswer {
 public:
  ResponsesAnswer(AnswerShape shape, Delivery delivery) : BlockAnswer(std::move(shape), delivery) {}

 private:
  std::string WholeJson() const override;
  void AddBeginning(std::vector<SseEvent>& events) override;
  void AddStep(const BlockStep& step, std::vector<SseEvent>& events) override;
  void AddEnd(std::vector<SseEvent>& events) override;
  void AddFailure(std::vector<SseEvent>& events) override;

  enum class Status { kInProgress, kEnded, kFailed };
  bool is_cut() const;  // by the number of tokens
  OrderedJson ResponseJson(Status status) const;
  OrderedJson UsageJson() const;
  std::string ItemId(size_t block) const;
  OrderedJson ItemJson(size_t block, const char* status) const;
  // Of the last block alone an end is known.
  const char* EndStatus(size_t block) const;
  void Add(const char* type, const OrderedJson& fields, std::vector<SseEvent>& events);
  void AddOpen(size_t block, std::vector<SseEvent>& events);
  void AddClose(size_t block, std::vector<SseEvent>& events);
  void AddTextClose(size_t block, std::vector<SseEvent>& events);

  int64_t next_number_ = 0;  // of an event
};

}  // namespace quire

#endif  // QUIRE_SERVE_RESPONSES_ANSWER_H_
