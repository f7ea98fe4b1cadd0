#include "serve/responses_answer.h"

#include <fmt/format.h>

#include <utility>

namespace quire {
namespace {

OrderedJson PartJson(const AnswerBlock& block, const std::string& text) {
  if (block.kind == BlockKind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

}  // namespace

bool ResponsesAnswer::is_cut() const {
  return end() && end()->finish_reason == FinishReasonName(FinishReason::kLength);
}

std::string ResponsesAnswer::ItemId(size_t block) const {
  const BlockKind of = blocks()[block].kind;
  const char* kind = of == BlockKind::kReasoning ? "rs" : of == BlockKind::kCall ? "fc" : "msg";
  // "resp_0123" has the items "msg_0123_0" ...
  return fmt::format("{}_{}_{}", kind, shape().id.substr(shape().id.find('_') + 1), block);
}

OrderedJson ResponsesAnswer::ItemJson(size_t block, const char* status) const {
  const AnswerBlock& from = blocks()[block];
  if (from.kind == BlockKind::kCall) {
    const bool has_begun = std::string_view(status) != "in_progress";
    return {{"id", ItemId(block)},    {"type", "function_call"},
            {"status", status},       {"call_id", from.call_id},
            {"name", from.tool_name}, {"arguments", has_begun ? from.text : ""}};
  }
  OrderedJson content = OrderedJson::array();
  if (std::string_view(status) != "in_progress") content.push_back(PartJson(from, from.text));
  OrderedJson item = {{"id", ItemId(block)}, {"type", "message"}, {"status", status}};
  if (from.kind == BlockKind::kReasoning) {
    item["type"] = "reasoning";
    item["summary"] = OrderedJson::array();
  } else {
    item["role"] = "assistant";
  }
  item["content"] = std::move(content);
  return item;
}

const char* ResponsesAnswer::EndStatus(size_t block) const {
  return is_cut() && block + 1 == blocks().size() ? "incomplete" : "completed";
}

OrderedJson ResponsesAnswer::UsageJson() const {
  const Usage counts = usage();
  return {{"input_tokens", counts.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", counts.cached_tokens}}},
          {"output_tokens", counts.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
          {"total_tokens", counts.prompt_tokens + counts.completion_tokens}};
}

OrderedJson ResponsesAnswer::ResponseJson(Status status) const {
  OrderedJson response = {{"id", shape().id},
                          {"object", "response"},
                          {"created_at", shape().created},
                          {"status", "in_progress"},
                          {"background", false},
                          {"error", nullptr},
                          {"incomplete_details", nullptr},
                          {"model", shape().model},
                          {"output", OrderedJson::array()},
                          {"usage", nullptr}};
  response.update(shape().request);
  if (status == Status::kFailed) {
    response["status"] = "failed";
    response["error"] = {{"code", "server_error"}, {"message", error()->what()}};
  }
  if (status != Status::kEnded) return response;
  response["status"] = is_cut() ? "incomplete" : "completed";
  if (is_cut()) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  for (size_t i = 0; i < blocks().size(); ++i) {
    response["output"].push_back(ItemJson(i, EndStatus(i)));
  }
  response["usage"] = UsageJson();
  return response;
}

std::string ResponsesAnswer::WholeJson() const { return Dump(ResponseJson(Status::kEnded)); }

void ResponsesAnswer::Add(const char* type, const OrderedJson& fields,
                          std::vector<SseEvent>& events) {
  OrderedJson data = {{"type", type}, {"sequence_number", next_number_++}};
  data.update(fields);
  events.push_back({.type = type, .data = Dump(data)});
}

void ResponsesAnswer::AddBeginning(std::vector<SseEvent>& events) {
  const OrderedJson response = ResponseJson(Status::kInProgress);
  Add("response.created", {{"response", response}}, events);
  Add("response.in_progress", {{"response", response}}, events);
}

void ResponsesAnswer::AddOpen(size_t block, std::vector<SseEvent>& events) {
  Add("response.output_item.added",
      {{"output_index", block}, {"item", ItemJson(block, "in_progress")}}, events);
  if (blocks()[block].kind == BlockKind::kCall) return;
  Add("response.content_part.added",
      {{"item_id", ItemId(block)},
       {"output_index", block},
       {"content_index", 0},
       {"part", PartJson(blocks()[block], "")}},
      events);
}

void ResponsesAnswer::AddClose(size_t block, std::vector<SseEvent>& events) {
  const AnswerBlock& closed = blocks()[block];
  if (closed.kind == BlockKind::kCall) {
    Add("response.function_call_arguments.done",
        {{"item_id", ItemId(block)},
         {"output_index", block},
         {"name", closed.tool_name},
         {"arguments", closed.text}},
        events);
  } else {
    AddTextClose(block, events);
  }
  Add("response.output_item.done",
      {{"output_index", block}, {"item", ItemJson(block, EndStatus(block))}}, events);
}

void ResponsesAnswer::AddTextClose(size_t block, std::vector<SseEvent>& events) {
  const AnswerBlock& closed = blocks()[block];
  const OrderedJson place = {
      {"item_id", ItemId(block)}, {"output_index", block}, {"content_index", 0}};
  OrderedJson done = place;
  done["text"] = closed.text;
  if (closed.kind == BlockKind::kText) done["logprobs"] = OrderedJson::array();
  Add(closed.kind == BlockKind::kText ? "response.output_text.done"
                                      : "response.reasoning_text.done",
      done, events);
  OrderedJson part_done = place;
  part_done["part"] = PartJson(closed, closed.text);
  Add("response.content_part.done", part_done, events);
}

void ResponsesAnswer::AddStep(const BlockStep& step, std::vector<SseEvent>& events) {
  if (step.what == BlockStep::What::kOpen) return AddOpen(step.block, events);
  if (step.what == BlockStep::What::kClose) return AddClose(step.block, events);
  OrderedJson fields = {
      {"item_id", ItemId(step.block)}, {"output_index", step.block}, {"delta", step.added}};
  if (blocks()[step.block].kind == BlockKind::kCall) {
    return Add("response.function_call_arguments.delta", fields, events);
  }
  const bool is_text = blocks()[step.block].kind == BlockKind::kText;
  fields["content_index"] = 0;
  if (is_text) fields["logprobs"] = OrderedJson::array();
  Add(is_text ? "response.output_text.delta" : "response.reasoning_text.delta", fields, events);
}

void ResponsesAnswer::AddEnd(std::vector<SseEvent>& events) {
  Add(is_cut() ? "response.incomplete" : "response.completed",
      {{"response", ResponseJson(Status::kEnded)}}, events);
}

void ResponsesAnswer::AddFailure(std::vector<SseEvent>& events) {
  if (next_number_ == 0) AddBeginning(events);  // clients know no other
  Add("response.failed", {{"response", ResponseJson(Status::kFailed)}}, events);
}

}  // namespace quire
