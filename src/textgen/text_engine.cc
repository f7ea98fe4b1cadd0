#include "textgen/text_engine.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <memory>
#include <utility>

#include "base/error.h"
#include "textgen/answer_text.h"
#include "textgen/stop_strings.h"
#include "textgen/text_constraint.h"

namespace quire {
namespace {

// The answers of one request on their way to its listener. Used by the engine's thread alone.
class TextAnswers {
 public:
  TextAnswers(Engine& engine, const Tokenizer& tokenizer, const TextRequest& request,
              TextEngine::Listener listener)
      : engine_(engine), listener_(std::move(listener)), include_stop_(request.include_stop) {
    const AnswerTextOptions options{
        .stop =
            request.stop.empty() ? nullptr : std::make_shared<const StopAutomaton>(request.stop),
        .include_stop = request.include_stop,
        .min_tokens = request.tokens.min_tokens,
        .skip_special_tokens = request.skip_special_tokens,
        .reasoning = request.reasoning,
        .tools = request.tools};
    for (int32_t i = 0; i < request.tokens.num_samples; ++i) {
      answers_.push_back({.text = AnswerText(tokenizer, request.tokens.prompt, options)});
    }
  }

  void Take(const TokenEvent& event) {
    Answer& answer = answers_[static_cast<size_t>(event.sample)];
    TextEvent out{.request = event.request,
                  .sample = event.sample,
                  .finish = event.finish,
                  .error = event.error,
                  .cached_tokens = event.cached_tokens,
                  .prompt_scores = event.prompt_scores,
                  .last_of_request = event.last_of_request};
    if (event.token != kNoToken) TakeToken(event, answer, out);
    if (event.finish != FinishReason::kNone) End(answer, out);
    out.output_tokens = answer.output_tokens;
    listener_(out);
  }

 private:
  struct Answer {
    AnswerText text;
    int64_t output_tokens = 0;
  };

  void TakeToken(const TokenEvent& event, Answer& answer, TextEvent& out) {
    if (answer.text.has_ended()) return;  // of the same step, behind what ended it
    ++answer.output_tokens;
    out.token =
        TokenScore{.chosen = {.token = event.token, .logprob = event.logprob}, .top = event.top};
    // A stop token is no part of the text.
    if (event.finish == FinishReason::kStop && !include_stop_) return;
    Add(answer.text.Put(event.token), out);
    if (answer.text.has_ended() && event.finish == FinishReason::kNone) {
      engine_.StopAnswer(event.request, event.sample);
    }
  }

  static void End(Answer& answer, TextEvent& out) {
    Add(answer.text.Flush(), out);
    out.stopped_by = answer.text.stopped_by();
    // Whatever ended it besides: all of its text was there.
    if (answer.text.has_ended()) out.finish = FinishReason::kStop;
  }

  static void Add(AnswerPieces pieces, TextEvent& out) {
    out.text.reasoning += pieces.text.reasoning;
    out.text.content += pieces.text.content;
    std::ranges::move(pieces.calls, std::back_inserter(out.calls));
  }

  Engine& engine_;
  TextEngine::Listener listener_;
  const bool include_stop_;
  std::vector<Answer> answers_;
};

}  // namespace

std::optional<RequestId> TextEngine::Submit(TextRequest request, Listener listener) {
  if (!request.ignore_eos) {
    const std::vector<int32_t>& eos = model_.generation.eos_tokens;
    request.tokens.stop_tokens.insert(request.tokens.stop_tokens.end(), eos.begin(), eos.end());
  }
  // The engine checks the number of answers before it uses it; so must this.
  Require(
      request.tokens.num_samples >= 1 && request.tokens.num_samples <= engine_.limits().max_seqs,
      "n: expected 1..{}, got {}", engine_.limits().max_seqs, request.tokens.num_samples);
  if (request.grammar) {
    const AnswerConstraintOptions options{
        .end_tokens = request.tokens.stop_tokens,
        .start = request.reasoning.value_or(ReasoningStart::kContent)};
    request.tokens.constraint = [grammar = request.grammar, options,
                                 tokenizer = model_.tokenizer.get()] {
      return MakeAnswerConstraint(grammar, *tokenizer, options);
    };
  }
  auto answers =
      std::make_shared<TextAnswers>(engine_, *model_.tokenizer, request, std::move(listener));
  return engine_.Submit(std::move(request.tokens),
                        [answers](const TokenEvent& event) { answers->Take(event); });
}

namespace {

// What the caller of GenerateText waits for; shared as in Generate.
struct PendingText {
  std::vector<TextAnswer> answers;
  std::string error;
  std::promise<void> done;

  void Take(const TextEvent& event) {
    TextAnswer& answer = answers[static_cast<size_t>(event.sample)];
    answer.text.reasoning += event.text.reasoning;
    answer.text.content += event.text.content;
    answer.finish = event.finish;
    answer.output_tokens = event.output_tokens;
    if (event.cached_tokens) answer.cached_tokens = *event.cached_tokens;
    if (!event.error.empty()) error = event.error;
    if (event.last_of_request) done.set_value();
  }
};

}  // namespace

std::vector<TextAnswer> GenerateText(TextEngine& engine, TextRequest request) {
  const auto pending = std::make_shared<PendingText>();
  pending->answers.resize(static_cast<size_t>(std::max(request.tokens.num_samples, 1)));
  if (!engine.Submit(std::move(request),
                     [pending](const TextEvent& event) { pending->Take(event); })) {
    throw Error(ErrorCode::kCapacityExceeded, "engine: the queue is full");
  }
  pending->done.get_future().wait();
  if (!pending->error.empty()) throw InternalError(pending->error);
  return std::move(pending->answers);
}

}  // namespace quire
