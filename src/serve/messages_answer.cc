#include "serve/messages_answer.h"

#include <utility>

namespace quire {
namespace {

OrderedJson InputJson(const std::string& arguments) {
  OrderedJson input = OrderedJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (!input.is_object()) return {{"INVALID_JSON", arguments}};
  return input;
}

// As it begins, if it has no text yet.
OrderedJson MessageBlockJson(const AnswerBlock& block, const std::string& text) {
  if (block.kind == BlockKind::kCall) {
    return {{"type", "tool_use"},
            {"id", block.call_id},
            {"name", block.tool_name},
            {"input", text.empty() ? OrderedJson::object() : InputJson(text)}};
  }
  if (block.kind == BlockKind::kReasoning) {
    return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
  }
  return {{"type", "text"}, {"text", text}};
}

OrderedJson BlockDeltaJson(const AnswerBlock& block, const std::string& added) {
  if (block.kind == BlockKind::kReasoning) return {{"type", "thinking_delta"}, {"thinking", added}};
  if (block.kind == BlockKind::kCall)
    return {{"type", "input_json_delta"}, {"partial_json", added}};
  return {{"type", "text_delta"}, {"text", added}};
}

// The type of every event is in its data, too.
SseEvent MessageEvent(OrderedJson data) {
  std::string type = data["type"].get<std::string>();
  return {.type = std::move(type), .data = Dump(data)};
}

}  // namespace

OrderedJson MessagesAnswer::StopJson() const {
  OrderedJson stop = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  if (!end()) return stop;
  if (end()->finish_reason == FinishReasonName(FinishReason::kLength)) {
    stop["stop_reason"] = "max_tokens";
  } else if (end()->finish_reason == "tool_calls") {
    stop["stop_reason"] = "tool_use";
  } else if (end()->stopped_by) {
    stop = {{"stop_reason", "stop_sequence"}, {"stop_sequence", *end()->stopped_by}};
  } else {
    stop["stop_reason"] = "end_turn";
  }
  return stop;
}

OrderedJson MessagesAnswer::UsageJson() const {
  const Usage counts = usage();
  return {{"input_tokens", counts.prompt_tokens - counts.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", counts.cached_tokens},
          {"output_tokens", counts.completion_tokens},
          {"output_tokens_details", {{"thinking_tokens", reasoning_tokens()}}}};
}

OrderedJson MessagesAnswer::MessageJson() const {
  OrderedJson content = OrderedJson::array();
  for (const AnswerBlock& block : blocks()) content.push_back(MessageBlockJson(block, block.text));
  OrderedJson message = {{"id", shape().id},
                         {"type", "message"},
                         {"role", "assistant"},
                         {"model", shape().model},
                         {"content", std::move(content)}};
  message.update(StopJson());
  message["usage"] = UsageJson();
  return message;
}

std::string MessagesAnswer::WholeJson() const { return Dump(MessageJson()); }

void MessagesAnswer::AddBeginning(std::vector<SseEvent>& events) {
  OrderedJson message = MessageJson();
  message.update(
      {{"stop_reason", nullptr}, {"stop_sequence", nullptr}});  // it may have ended already
  events.push_back(MessageEvent({{"type", "message_start"}, {"message", std::move(message)}}));
}

void MessagesAnswer::AddStep(const BlockStep& step, std::vector<SseEvent>& events) {
  const AnswerBlock& block = blocks()[step.block];
  switch (step.what) {
    case BlockStep::What::kOpen:
      events.push_back(MessageEvent({{"type", "content_block_start"},
                                     {"index", step.block},
                                     {"content_block", MessageBlockJson(block, "")}}));
      return;
    case BlockStep::What::kGrow:
      events.push_back(MessageEvent({{"type", "content_block_delta"},
                                     {"index", step.block},
                                     {"delta", BlockDeltaJson(block, step.added)}}));
      return;
    case BlockStep::What::kClose:
      events.push_back(MessageEvent({{"type", "content_block_stop"}, {"index", step.block}}));
      return;
  }
}

void MessagesAnswer::AddEnd(std::vector<SseEvent>& events) {
  events.push_back(
      MessageEvent({{"type", "message_delta"}, {"delta", StopJson()}, {"usage", UsageJson()}}));
  events.push_back(MessageEvent({{"type", "message_stop"}}));
}

void MessagesAnswer::AddFailure(std::vector<SseEvent>& events) {
  events.push_back({.type = "error", .data = error()->ToJson(ErrorForm::kAnthropic)});
}

std::string CountedTokensJson(int64_t tokens) { return Dump({{"input_tokens", tokens}}); }

}  // namespace quire
