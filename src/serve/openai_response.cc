#include "serve/openai_response.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "http/sse.h"
#include "serve/generate_response.h"
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
          {"root", model.id},
          {"parent", nullptr},
          {"permission", OrderedJson::array()},
          {"max_model_len", model.context}};
}

OrderedJson LogprobsJson(const AnswerShape& shape, std::span<const ScoredToken> tokens) {
  return shape.endpoint == Endpoint::kChat ? ChatLogprobsJson(*shape.tokenizer, tokens)
                                           : CompletionLogprobsJson(*shape.tokenizer, tokens);
}

AnswerShape ShapeOf(const GenerationFields& fields, Endpoint endpoint) {
  return {.endpoint = endpoint,
          .n = fields.n,
          .logprobs = fields.logprobs,
          .top_logprobs = fields.sampling.top_logprobs,
          .token_ids = fields.token_ids,
          .prompt_only = fields.prompt_only,
          .include_usage = fields.include_usage,
          .continuous_usage = fields.continuous_usage,
          .skip_special_tokens = fields.skip_special_tokens};
}

// Of a whole answer: the parts of one call joined.
void AddCall(const ToolCallDelta& delta, std::vector<ToolCall>& calls) {
  if (delta.name) calls.push_back({.id = *delta.id, .name = *delta.name});
  calls[delta.index].arguments += delta.arguments;
}

OrderedJson CallsJson(std::span<const ToolCall> calls) {
  OrderedJson list = OrderedJson::array();
  for (const ToolCall& call : calls) list.push_back(ToolCallForTemplate(call));
  return list;
}

OrderedJson CallDeltasJson(std::span<const ToolCallDelta> deltas) {
  OrderedJson list = OrderedJson::array();
  for (const ToolCallDelta& delta : deltas) {
    OrderedJson json = {{"index", delta.index}};
    if (delta.name) {
      json["id"] = *delta.id;
      json["type"] = "function";
      json["function"]["name"] = *delta.name;
    }
    json["function"]["arguments"] = delta.arguments;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

int64_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string MakeAnswerId(Endpoint endpoint, uint64_t random_high, uint64_t random_low) {
  const char* kind = endpoint == Endpoint::kChat         ? "chatcmpl-"
                     : endpoint == Endpoint::kCompletion ? "cmpl-"
                     : endpoint == Endpoint::kMessages   ? "msg_"
                     : endpoint == Endpoint::kResponses  ? "resp_"
                                                         : "gen-";
  return fmt::format("{}{:016x}{:016x}", kind, random_high, random_low);
}

AnswerShape MakeAnswerShape(const ChatCompletionRequest& request) {
  return ShapeOf(request.generation, Endpoint::kChat);
}

AnswerShape MakeAnswerShape(const CompletionRequest& request) {
  AnswerShape shape = ShapeOf(request.generation, Endpoint::kCompletion);
  shape.echo = request.echo;
  return shape;
}

AnswerShape MakeAnswerShape(const GenerateRequest& request) {
  AnswerShape shape = ShapeOf(request.generation, Endpoint::kGenerate);
  shape.is_list = request.is_list || request.generation.n > 1;
  shape.text_in_logprobs = request.text_in_logprobs;
  return shape;
}

// ---- Whole ----

WholeAnswer::WholeAnswer(AnswerShape shape)
    : choices_(std::make_unique<internal::Choices>(std::move(shape))) {
  texts_.resize(choices_->size());
}

WholeAnswer::~WholeAnswer() = default;

void WholeAnswer::Take(size_t prompt, const TextEvent& event) {
  std::optional<ChoicePiece> piece = choices_->Take(prompt, event);
  if (!piece) return;
  ChoiceText& text = texts_[piece->index];
  text.reasoning += piece->reasoning;
  text.content += piece->content;
  for (const ToolCallDelta& call : piece->calls) AddCall(call, text.calls);
  for (ScoredToken& token : piece->tokens) text.tokens.push_back(std::move(token));
  if (piece->token_id) text.token_ids.push_back(*piece->token_id);
  if (piece->finish_reason) text.finish_reason = *piece->finish_reason;
  if (piece->stopped_by) text.stopped_by = piece->stopped_by;
}

bool WholeAnswer::done() const { return choices_->done(); }
const std::optional<ApiError>& WholeAnswer::error() const { return choices_->error(); }
Usage WholeAnswer::usage() const { return choices_->usage(); }

// Writes an answer, choice by choice and token by token.
class WholeAnswer::Writer {
 public:
  explicit Writer(const WholeAnswer& answer) : answer_(answer), shape_(answer.choices_->shape()) {}

  std::string Next() {
    std::string out;
    while (out.size() < kPieceBytes && phase_ != Phase::kEnded) Step(out);
    return out;
  }

 private:
  enum class Phase { kFrame, kChoice, kTokens, kEnded };

  bool is_chat() const { return shape_.endpoint == Endpoint::kChat; }

  void Step(std::string& out) {
    switch (phase_) {
      case Phase::kFrame: {
        std::string frame = Dump(Frame(shape_, is_chat() ? "chat.completion" : "text_completion"));
        frame.resize(frame.size() - 2);  // "]}" of the choices, which come last
        out += frame;
        phase_ = Phase::kChoice;
        return;
      }
      case Phase::kChoice:
        if (choice_ < answer_.texts_.size()) return BeginChoice(out);
        out += fmt::format("],\"usage\":{}", Dump(UsageJson(answer_.usage())));
        if (is_chat() && shape_.token_ids) {
          out += fmt::format(R"(,"prompt_token_ids":[{}])",
                             fmt::join(shape_.prompts.front().tokens, ","));
        }
        out += '}';
        phase_ = Phase::kEnded;
        return;
      case Phase::kTokens:
        return WriteToken(out);
      case Phase::kEnded:
        return;
    }
  }

  void BeginChoice(std::string& out) {
    const ChoiceText& text = answer_.texts_[choice_];
    if (choice_ > 0) out += ',';
    if (is_chat()) {
      OrderedJson message = {
          {"role", "assistant"}, {"content", text.content}, {"refusal", nullptr}};
      if (!text.reasoning.empty()) message["reasoning_content"] = text.reasoning;
      if (!text.calls.empty()) {
        message["tool_calls"] = CallsJson(text.calls);
        if (text.content.empty()) message["content"] = nullptr;
      }
      out += fmt::format(R"({{"index":{},"message":{})", choice_, Dump(message));
    } else {
      out += fmt::format(R"({{"index":{},"text":{})", choice_, Dump(text.content));
    }
    out += R"(,"logprobs":)";
    if (text.tokens.empty()) {
      out += "null";
      return EndChoice(out);
    }
    out += fmt::format(R"({{"{}":[)", kLists[is_chat() ? 0 : 1]);
    list_ = is_chat() ? 0 : 1;
    token_ = 0;
    phase_ = Phase::kTokens;
  }

  // Of the list that is being written, or its end.
  void WriteToken(std::string& out) {
    const std::vector<ScoredToken>& tokens = answer_.texts_[choice_].tokens;
    if (token_ < tokens.size()) {
      if (token_ > 0) out += ',';
      out += Entry(tokens[token_++]);
      return;
    }
    if (is_chat() || list_ + 1 == std::size(kLists)) {
      out += is_chat() ? R"(],"refusal":null})" : "]}";
      return EndChoice(out);
    }
    ++list_;
    token_ = 0;
    out += fmt::format(R"(],"{}":[)", kLists[list_]);
  }

  std::string Entry(const ScoredToken& token) const {
    const Tokenizer& tokenizer = *shape_.tokenizer;
    switch (list_) {
      case 0:
        return Dump(ChatTokenJson(tokenizer, token.score));
      case 1:
        return Dump(CompletionTokenName(tokenizer, token.score.chosen.token));
      case 2:
        return token.is_scored ? Dump(FiniteLogprob(token.score.chosen.logprob)) : "null";
      case 3:
        return Dump(CompletionTokenEntry(tokenizer, token).top);
      default:
        return std::to_string(token.offset);
    }
  }

  void EndChoice(std::string& out) {
    if (shape_.token_ids) {
      if (!is_chat()) {
        out += fmt::format(R"(,"prompt_token_ids":[{}])",
                           fmt::join(answer_.choices_->prompt(choice_).tokens, ","));
      }
      out += fmt::format(R"(,"token_ids":[{}])", fmt::join(answer_.texts_[choice_].token_ids, ","));
    }
    out += fmt::format(R"(,"finish_reason":{}}})", Dump(answer_.texts_[choice_].finish_reason));
    ++choice_;
    phase_ = Phase::kChoice;
  }

  // Chat has the first, completions the others.
  static constexpr const char* kLists[] = {"content", "tokens", "token_logprobs", "top_logprobs",
                                           "text_offset"};
  const WholeAnswer& answer_;
  const AnswerShape& shape_;
  Phase phase_ = Phase::kFrame;
  size_t choice_ = 0;
  size_t list_ = 0;
  size_t token_ = 0;
};

ReplyPieces WholeAnswer::Json() const {
  QUIRE_CHECK(done() && !error());
  if (choices_->shape().endpoint == Endpoint::kGenerate) {
    return [this, i = size_t{0}, pieces = ReplyPieces()]() mutable {
      const bool is_list = choices_->shape().is_list;
      std::string out;
      while (i < texts_.size() && out.size() < kPieceBytes) {
        if (!pieces) {
          if (is_list) out += i == 0 ? '[' : ',';
          const ChoiceText& text = texts_[i];
          pieces = GeneratedTextPieces(
              choices_->shape(), {.index = i,
                                  .text = text.content,
                                  .output_ids = fmt::format("{}", fmt::join(text.token_ids, ",")),
                                  .finish_reason = text.finish_reason,
                                  .stopped_by = text.stopped_by,
                                  .tokens = text.tokens,
                                  .usage = choices_->usage(i)});
        }
        const std::string piece = pieces();
        out += piece;
        if (!piece.empty()) continue;
        pieces = nullptr;
        if (++i == texts_.size() && is_list) out += ']';
      }
      return out;
    };
  }
  return [writer = Writer(*this)]() mutable { return writer.Next(); };
}

// ---- In chunks ----

namespace {

OrderedJson Chunk(const AnswerShape& shape, const Usage& usage, OrderedJson choice) {
  OrderedJson chunk =
      Frame(shape, shape.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"].push_back(std::move(choice));
  if (shape.include_usage) {
    chunk["usage"] = shape.continuous_usage ? UsageJson(usage) : OrderedJson(nullptr);
  }
  return chunk;
}

OrderedJson TokenIdsJson(const ChoicePiece& piece) {
  return piece.token_id ? OrderedJson::array({*piece.token_id}) : OrderedJson::array();
}

void AddChatChunks(const AnswerShape& shape, const Usage& usage, const ChoicePiece& piece,
                   std::vector<std::string>& chunks) {
  // What is about the tokens goes with the first chunk that is made of them.
  OrderedJson logprobs = nullptr;
  OrderedJson token_ids = OrderedJson::array();
  const auto make = [&](OrderedJson delta, const std::optional<std::string>& finish = {}) {
    OrderedJson choice = {{"index", piece.index},
                          {"delta", std::move(delta)},
                          {"logprobs", std::exchange(logprobs, nullptr)},
                          {"finish_reason", FinishJson(finish)}};
    if (shape.token_ids) choice["token_ids"] = std::exchange(token_ids, OrderedJson::array());
    return Chunk(shape, usage, std::move(choice));
  };
  if (piece.is_first) {
    OrderedJson chunk = make({{"role", "assistant"}, {"content", ""}});
    if (shape.token_ids) chunk["prompt_token_ids"] = shape.prompts.front().tokens;
    chunks.push_back(Dump(chunk));
  }
  logprobs = LogprobsJson(shape, piece.tokens);
  token_ids = TokenIdsJson(piece);
  if (!piece.reasoning.empty()) {
    chunks.push_back(Dump(make({{"reasoning_content", piece.reasoning}})));
  }
  if (!piece.content.empty()) chunks.push_back(Dump(make({{"content", piece.content}})));
  if (!piece.calls.empty()) {
    chunks.push_back(Dump(make({{"tool_calls", CallDeltasJson(piece.calls)}})));
  }
  if (!logprobs.is_null() || !token_ids.empty()) {
    chunks.push_back(Dump(make({{"content", ""}})));
  }
  if (piece.finish_reason) {
    chunks.push_back(Dump(make(OrderedJson::object(), piece.finish_reason)));
  }
}

void AddCompletionChunk(const AnswerShape& shape, const Usage& usage, const ChoicePiece& piece,
                        std::span<const int32_t> prompt, std::vector<std::string>& chunks) {
  if (piece.content.empty() && piece.tokens.empty() && !piece.token_id && !piece.finish_reason) {
    return;
  }
  OrderedJson choice = {{"index", piece.index},
                        {"text", piece.content},
                        {"logprobs", LogprobsJson(shape, piece.tokens)},
                        {"finish_reason", FinishJson(piece.finish_reason)}};
  if (shape.token_ids) {
    if (piece.is_first) choice["prompt_token_ids"] = prompt;
    choice["token_ids"] = TokenIdsJson(piece);
  }
  chunks.push_back(Dump(Chunk(shape, usage, std::move(choice))));
}

}  // namespace

StreamedAnswer::StreamedAnswer(AnswerShape shape)
    : choices_(std::make_unique<internal::Choices>(std::move(shape))) {
  if (choices_->shape().endpoint == Endpoint::kGenerate) generated_.resize(choices_->size());
}

StreamedAnswer::~StreamedAnswer() = default;

std::vector<std::string> StreamedAnswer::Take(size_t prompt, const TextEvent& event) {
  std::vector<std::string> chunks;
  const std::optional<ChoicePiece> piece = choices_->Take(prompt, event);
  if (!piece) return chunks;
  const AnswerShape& shape = choices_->shape();
  if (shape.endpoint == Endpoint::kGenerate) {
    Generated& generated = generated_[piece->index];
    generated.text += piece->content;
    if (piece->token_id) {
      if (!generated.ids.empty()) generated.ids += ',';
      generated.ids += std::to_string(*piece->token_id);
    }
    if (piece->content.empty() && !piece->finish_reason) return chunks;
    chunks.push_back(GeneratedTextJson(shape, {.index = piece->index,
                                               .text = generated.text,
                                               .output_ids = generated.ids,
                                               .finish_reason = piece->finish_reason,
                                               .stopped_by = piece->stopped_by,
                                               .usage = choices_->usage(piece->index)}));
  } else if (shape.endpoint == Endpoint::kChat) {
    AddChatChunks(shape, usage(), *piece, chunks);
  } else {
    AddCompletionChunk(shape, usage(), *piece, choices_->prompt(piece->index).tokens, chunks);
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

std::string StreamedAnswer::Ending() const {
  QUIRE_CHECK(done() || error());
  return SseData(error() ? error()->ToJson() : "[DONE]");
}

// ---- Models ----

std::string ModelsJson(const ServedModel& model) {
  return Dump({{"object", "list"}, {"data", OrderedJson::array({ModelEntry(model)})}});
}

std::string ModelJson(const ServedModel& model) { return Dump(ModelEntry(model)); }

}  // namespace quire
