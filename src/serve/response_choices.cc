#include "serve/response_choices.h"

#include <utility>

#include "base/error.h"

namespace quire::internal {

Choices::Choices(AnswerShape shape)
    : shape_(std::move(shape)),
      choices_(shape_.prompts.size() * static_cast<size_t>(shape_.n)),
      cached_tokens_(shape_.prompts.size()),
      prompt_scores_(shape_.prompts.size()) {
  QUIRE_CHECK(shape_.n >= 1 && !choices_.empty() && shape_.tokenizer != nullptr);
  QUIRE_CHECK(shape_.endpoint != Endpoint::kChat || shape_.prompts.size() == 1);
  if (shape_.endpoint != Endpoint::kCompletion || !shape_.logprobs) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const size_t prompt = i / static_cast<size_t>(shape_.n);
    choices_[i].offsets.emplace(*shape_.tokenizer, shape_.prompts[prompt].tokens,
                                AnswerStart(prompt), shape_.skip_special_tokens);
  }
}

int64_t Choices::AnswerStart(size_t prompt) const {
  return shape_.echo ? CountCharacters(shape_.prompts[prompt].text) : 0;
}

std::optional<ChoicePiece> Choices::Take(size_t prompt, const TextEvent& event) {
  QUIRE_CHECK(prompt < shape_.prompts.size() && event.sample >= 0 && event.sample < shape_.n,
              "prompt {}, sample {}", prompt, event.sample);
  ChoicePiece piece{.index =
                        prompt * static_cast<size_t>(shape_.n) + static_cast<size_t>(event.sample)};
  Choice& choice = choices_[piece.index];
  choice.output_tokens = event.output_tokens;
  if (event.sample == 0 && event.cached_tokens) {
    cached_tokens_[prompt] = event.cached_tokens->raw();
  }
  if (event.sample == 0 && !event.prompt_scores.empty()) {
    prompt_scores_[prompt] = event.prompt_scores;
  }
  if (event.finish != FinishReason::kNone) {
    ++num_ended_;
    if (event.finish == FinishReason::kStop || event.finish == FinishReason::kLength) {
      piece.finish_reason = FinishReasonName(event.finish);
      piece.stopped_by = event.stopped_by;
      if (shape_.prompt_only) piece.finish_reason = FinishReasonName(FinishReason::kLength);
    } else if (!error_) {
      error_ = FromFinish(event.finish, event.error);
    }
  }
  if (error_) return std::nullopt;

  piece.is_first = !std::exchange(choice.begun, true);
  if (piece.is_first && shape_.echo) BeginEcho(prompt, piece);
  if (!shape_.prompt_only) {
    piece.reasoning = event.text.reasoning;
    piece.content += event.text.content;
    for (const ToolCallDelta& call : event.calls) {
      piece.calls.push_back(call);
      if (call.name && !call.id) {
        piece.calls.back().id = MakeToolCallId(shape_.id, piece.index, call.index);
      }
    }
    choice.has_calls = choice.has_calls || !event.calls.empty();
    // One that a stop string or the length has cut is for nobody to run.
    if (choice.has_calls && event.finish == FinishReason::kStop && !event.stopped_by) {
      piece.finish_reason = "tool_calls";
    }
    if (shape_.token_ids && event.token) piece.token_id = event.token->chosen.token;
    if (shape_.logprobs && event.token) {
      const bool has_offsets = choice.offsets.has_value();
      piece.tokens.push_back(
          {.score = *event.token,
           .offset = has_offsets ? choice.offsets->Next(event.token->chosen.token) : 0});
    }
  }
  return piece;
}

void Choices::BeginEcho(size_t prompt, ChoicePiece& piece) {
  const AnswerPrompt& echoed = shape_.prompts[prompt];
  piece.content = echoed.text;
  if (!shape_.logprobs) return;
  const std::vector<int64_t> offsets = PromptOffsets(*shape_.tokenizer, echoed.text, echoed.tokens);
  const auto& scores = prompt_scores_[prompt];
  QUIRE_CHECK(scores.size() + 1 == echoed.tokens.size(), "{} scores of {} tokens", scores.size(),
              echoed.tokens.size());
  piece.tokens.push_back({.score = {.chosen = {.token = echoed.tokens.front()}},
                          .is_scored = false,
                          .offset = offsets.front()});
  for (size_t i = 0; i < scores.size(); ++i) {
    piece.tokens.push_back(
        {.score = {.chosen = scores[i].chosen, .top = scores[i].top}, .offset = offsets[i + 1]});
  }
}

Usage Choices::usage() const {
  Usage usage;
  for (size_t i = 0; i < shape_.prompts.size(); ++i) {
    usage.prompt_tokens += static_cast<int64_t>(shape_.prompts[i].tokens.size());
    usage.cached_tokens += cached_tokens_[i];
  }
  if (shape_.prompt_only) return usage;
  for (const Choice& choice : choices_) usage.completion_tokens += choice.output_tokens;
  return usage;
}

Usage Choices::usage(size_t choice) const {
  const size_t prompt = choice / static_cast<size_t>(shape_.n);
  return {.prompt_tokens = std::ssize(shape_.prompts[prompt].tokens),
          .completion_tokens = choices_[choice].output_tokens,
          .cached_tokens = cached_tokens_[prompt]};
}

}  // namespace quire::internal
