#include "serve/answer_blocks.h"

#include <utility>

#include "base/error.h"
#include "serve/messages_answer.h"
#include "serve/responses_answer.h"

namespace quire {

std::vector<BlockStep> AnswerBlocks::Take(const internal::ChoicePiece& piece) {
  std::vector<BlockStep> steps;
  Add(BlockKind::kReasoning, piece.reasoning, steps);
  Add(BlockKind::kText, piece.content, steps);
  for (const ToolCallDelta& call : piece.calls) {
    if (call.name) {
      Open({.kind = BlockKind::kCall, .call_id = *call.id, .tool_name = *call.name}, steps);
    }
    Grow(call.arguments, steps);
  }
  if (piece.finish_reason) Close(steps);
  return steps;
}

void AnswerBlocks::Add(BlockKind kind, const std::string& text, std::vector<BlockStep>& steps) {
  if (text.empty()) return;
  if (!is_open_ || blocks_.back().kind != kind) Open({.kind = kind}, steps);
  Grow(text, steps);
}

void AnswerBlocks::Open(AnswerBlock block, std::vector<BlockStep>& steps) {
  Close(steps);
  blocks_.push_back(std::move(block));
  is_open_ = true;
  steps.push_back({.what = BlockStep::What::kOpen, .block = blocks_.size() - 1});
}

void AnswerBlocks::Grow(const std::string& text, std::vector<BlockStep>& steps) {
  if (text.empty()) return;
  blocks_.back().text += text;
  steps.push_back({.what = BlockStep::What::kGrow, .block = blocks_.size() - 1, .added = text});
}

void AnswerBlocks::Close(std::vector<BlockStep>& steps) {
  if (!std::exchange(is_open_, false)) return;
  steps.push_back({.what = BlockStep::What::kClose, .block = blocks_.size() - 1});
}

BlockAnswer::BlockAnswer(AnswerShape shape, Delivery delivery)
    : delivery_(delivery), choices_(std::move(shape)) {
  QUIRE_CHECK(choices_.size() == 1, "{} choices", choices_.size());
}

std::vector<SseEvent> BlockAnswer::Take(size_t prompt, const TextEvent& event) {
  std::vector<SseEvent> events;
  const std::optional<internal::ChoicePiece> piece = choices_.Take(prompt, event);
  if (!piece) return events;
  if (!piece->reasoning.empty()) reasoning_tokens_ = event.output_tokens;
  if (piece->finish_reason) {
    end_ = {.finish_reason = *piece->finish_reason, .stopped_by = piece->stopped_by};
  }
  if (delivery_ == Delivery::kWhole) {
    (void)blocks_.Take(*piece);
    return events;
  }
  if (piece->is_first) AddBeginning(events);
  for (const BlockStep& step : blocks_.Take(*piece)) AddStep(step, events);
  if (end_) AddEnd(events);
  return events;
}

ReplyPieces BlockAnswer::Json() const {
  QUIRE_CHECK(done() && !error());
  return [this, given = false]() mutable {
    return std::exchange(given, true) ? std::string() : WholeJson();
  };
}

std::string BlockAnswer::Ending() {
  QUIRE_CHECK(done() || error());
  std::vector<SseEvent> events;
  if (error()) AddFailure(events);
  std::string text;
  for (const SseEvent& event : events) text += SseText(event);
  return text;
}

std::unique_ptr<BlockAnswer> MakeBlockAnswer(AnswerShape shape, Delivery delivery) {
  QUIRE_CHECK(shape.endpoint == Endpoint::kMessages || shape.endpoint == Endpoint::kResponses);
  if (shape.endpoint == Endpoint::kMessages) {
    return std::make_unique<MessagesAnswer>(std::move(shape), delivery);
  }
  return std::make_unique<ResponsesAnswer>(std::move(shape), delivery);
}

}  // namespace quire
