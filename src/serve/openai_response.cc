#include "serve/openai_response.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "serve/response_choices.h"

namespace quire {
namespace {

using internal::ChoicePiece;

OrderedJson UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

OrderedJson FinishJson(const std::optional<std::string>& reason) {
  return reason ? OrderedJson(*reason) : OrderedJson(nullptr);
}

// What stands around the choices.
OrderedJson Frame(const AnswerShape& shape, const char* object) {
  OrderedJson frame = {{"id", shape.id},
                       {"object", object},
                       {"created", shape.created},
                       {"model", shape.model},
                       {"system_fingerprint", nullptr},
                       {"choices", OrderedJson::array()}};
  if (!shape.system_fingerprint.empty()) frame["system_fingerprint"] = shape.system_fingerprint;
  return frame;
}

OrderedJson ModelEntry(const ServedModel& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "quire"},
          {"max_model_len", model.context}};
}

// Puts the lists of `more` behind those of `all`.
void AppendLogprobs(OrderedJson& all, const OrderedJson& more) {
  if (more.is_null()) return;
  if (all.is_null()) {
    all = more;
    return;
  }
  for (const auto& [name, list] : more.items()) {
    if (!list.is_array()) continue;
    for (const OrderedJson& entry : list) all[name].push_back(entry);
  }
}

AnswerShape ShapeOf(const GenerationFields& fields, Endpoint endpoint) {
  return {.endpoint = endpoint,
          .n = fields.n,
          .logprobs = fields.logprobs,
          .prompt_only = fields.prompt_only,
          .include_usage = fields.include_usage,
          .skip_special_tokens = fields.skip_special_tokens};
}

}  // namespace

int64_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string MakeAnswerId(Endpoint endpoint, uint64_t random_high, uint64_t random_low) {
  return fmt::format("{}-{:016x}{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl",
                     random_high, random_low);
}

AnswerShape MakeAnswerShape(const ChatCompletionRequest& request) {
  return ShapeOf(request.generation, Endpoint::kChat);
}

AnswerShape MakeAnswerShape(const CompletionRequest& request) {
  AnswerShape shape = ShapeOf(request.generation, Endpoint::kCompletion);
  shape.echo = request.echo;
  return shape;
}

// ---- Whole ----

WholeAnswer::WholeAnswer(AnswerShape shape)
    : choices_(std::make_unique<internal::Choices>(std::move(shape))) {
  texts_.resize(choices_->size());
}

WholeAnswer::~WholeAnswer() = default;

void WholeAnswer::Take(size_t prompt, const TextEvent& event) {
  const std::optional<ChoicePiece> piece = choices_->Take(prompt, event);
  if (!piece) return;
  ChoiceText& text = texts_[piece->index];
  text.reasoning += piece->reasoning;
  text.content += piece->content;
  AppendLogprobs(text.logprobs, piece->logprobs);
  if (piece->finish_reason) text.finish_reason = *piece->finish_reason;
}

bool WholeAnswer::done() const { return choices_->done(); }
const std::optional<ApiError>& WholeAnswer::error() const { return choices_->error(); }
Usage WholeAnswer::usage() const { return choices_->usage(); }

std::string WholeAnswer::Json() const {
  QUIRE_CHECK(done() && !error());
  const AnswerShape& shape = choices_->shape();
  const bool is_chat = shape.endpoint == Endpoint::kChat;
  OrderedJson answer = Frame(shape, is_chat ? "chat.completion" : "text_completion");
  for (size_t i = 0; i < texts_.size(); ++i) {
    const ChoiceText& text = texts_[i];
    OrderedJson choice = {{"index", i}};
    if (is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", text.content}, {"refusal", nullptr}};
      if (!text.reasoning.empty()) choice["message"]["reasoning_content"] = text.reasoning;
    } else {
      choice["text"] = text.content;
    }
    choice["logprobs"] = text.logprobs;
    choice["finish_reason"] = text.finish_reason;
    answer["choices"].push_back(std::move(choice));
  }
  answer["usage"] = UsageJson(usage());
  return Dump(answer);
}

// ---- In chunks ----

namespace {

std::string Chunk(const AnswerShape& shape, OrderedJson choice) {
  OrderedJson chunk =
      Frame(shape, shape.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"].push_back(std::move(choice));
  if (shape.include_usage) chunk["usage"] = nullptr;
  return Dump(chunk);
}

std::string ChatChunk(const AnswerShape& shape, size_t index, OrderedJson delta,
                      OrderedJson logprobs, const std::optional<std::string>& finish = {}) {
  return Chunk(shape, {{"index", index},
                       {"delta", std::move(delta)},
                       {"logprobs", std::move(logprobs)},
                       {"finish_reason", FinishJson(finish)}});
}

void AddChatChunks(const AnswerShape& shape, const ChoicePiece& piece,
                   std::vector<std::string>& chunks) {
  if (piece.is_first) {
    chunks.push_back(
        ChatChunk(shape, piece.index, {{"role", "assistant"}, {"content", ""}}, nullptr));
  }
  OrderedJson logprobs = piece.logprobs;  // with the first piece of text
  if (!piece.reasoning.empty()) {
    chunks.push_back(ChatChunk(shape, piece.index, {{"reasoning_content", piece.reasoning}},
                               std::exchange(logprobs, nullptr)));
  }
  if (!piece.content.empty() || !logprobs.is_null()) {
    chunks.push_back(
        ChatChunk(shape, piece.index, {{"content", piece.content}}, std::move(logprobs)));
  }
  if (piece.finish_reason) {
    chunks.push_back(
        ChatChunk(shape, piece.index, OrderedJson::object(), nullptr, piece.finish_reason));
  }
}

void AddCompletionChunk(const AnswerShape& shape, const ChoicePiece& piece,
                        std::vector<std::string>& chunks) {
  if (piece.content.empty() && piece.logprobs.is_null() && !piece.finish_reason) return;
  chunks.push_back(Chunk(shape, {{"index", piece.index},
                                 {"text", piece.content},
                                 {"logprobs", piece.logprobs},
                                 {"finish_reason", FinishJson(piece.finish_reason)}}));
}

}  // namespace

StreamedAnswer::StreamedAnswer(AnswerShape shape)
    : choices_(std::make_unique<internal::Choices>(std::move(shape))) {}

StreamedAnswer::~StreamedAnswer() = default;

std::vector<std::string> StreamedAnswer::Take(size_t prompt, const TextEvent& event) {
  std::vector<std::string> chunks;
  const std::optional<ChoicePiece> piece = choices_->Take(prompt, event);
  if (!piece) return chunks;
  const AnswerShape& shape = choices_->shape();
  if (shape.endpoint == Endpoint::kChat) {
    AddChatChunks(shape, *piece, chunks);
  } else {
    AddCompletionChunk(shape, *piece, chunks);
  }
  if (done() && shape.include_usage) {
    OrderedJson last = Frame(
        shape, shape.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
    last["usage"] = UsageJson(usage());
    chunks.push_back(Dump(last));
  }
  return chunks;
}

bool StreamedAnswer::done() const { return choices_->done(); }
const std::optional<ApiError>& StreamedAnswer::error() const { return choices_->error(); }
Usage StreamedAnswer::usage() const { return choices_->usage(); }

// ---- Models ----

std::string ModelsJson(const ServedModel& model) {
  return Dump({{"object", "list"}, {"data", OrderedJson::array({ModelEntry(model)})}});
}

std::string ModelJson(const ServedModel& model) { return Dump(ModelEntry(model)); }

}  // namespace quire
