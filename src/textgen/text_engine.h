// A TextEngine turns requests into text: it joins an engine and the text side of its model.
//
// A TextEngine keeps nothing of its own between calls; threads and listeners are as in engine/engine.h.
#ifndef QUIRE_TEXTGEN_TEXT_ENGINE_H_
#define QUIRE_TEXTGEN_TEXT_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "text/grammar/token_grammar.h"
#include "text/reasoning.h"
#include "text/tools.h"
#include "textgen/answer_text.h"
#include "textgen/text_model.h"

namespace quire {

struct TextRequest {
  // The prompt's tokens, how to draw, how many. Its stop_tokens are those of the caller's own; the
  // model's are added.
  Request tokens = {};
  bool ignore_eos = false;             // the model's own end tokens do not end an answer
  std::vector<std::string> stop = {};  // texts that do; not before min_tokens
  bool include_stop = false;           // what ended an answer, stop token or text, is part of it
  bool skip_special_tokens = true;     // of the answer's text
  std::optional<ReasoningStart> reasoning = {};  // as in AnswerTextOptions
  std::optional<ToolCallOptions> tools =
      {};  // too; special tokens that mark calls must not be skipped
  // What the answer's text is held to, behind its reasoning; null: nothing. It may end with the tokens
  // that end an answer, and ends by itself where nothing can follow.
  std::shared_ptr<const TokenGrammar> grammar = {};
};

// A token of an answer, with what was asked for about it.
struct TokenScore {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};
};

// A piece of one answer, or its end. Every token gives one, though its text may come with a later one.
struct TextEvent {
  RequestId request = 0;
  int32_t sample = 0;
  ReasoningPieces text = {};
  std::vector<ToolCallDelta> calls = {};  // their parts, in order
  // Of every token that is counted. A stop token is none of the text, unless asked for.
  std::optional<TokenScore> token = {};
  int64_t output_tokens = 0;  // of this answer so far, a stop token included
  FinishReason finish = FinishReason::kNone;
  std::optional<std::string> stopped_by = {};  // kStop: the stop string, if one was found
  std::string error = {};                      // kFailed: why
  // With the first event of an answer, as in TokenEvent.
  std::optional<TokenCount> cached_tokens = {};
  std::vector<TokenEvent::PromptToken> prompt_scores = {};
  bool last_of_request = false;
};

class TextEngine {
 public:
  using Listener = std::function<void(const TextEvent&)>;

  // Both outlive this.
  TextEngine(Engine& engine, const TextModel& model) : engine_(engine), model_(model) {}

  // As Engine::Submit, with the events of the same tokens and ends. Throws Error(kInvalidArgument) for
  // an empty stop string, too.
  std::optional<RequestId> Submit(TextRequest request, Listener listener);
  void Cancel(RequestId id) { engine_.Cancel(id); }

  Engine& engine() { return engine_; }
  const TextModel& model() const { return model_; }

 private:
  Engine& engine_;
  const TextModel& model_;
};

struct TextAnswer {
  ReasoningPieces text = {};
  FinishReason finish = FinishReason::kNone;
  int64_t output_tokens = 0;
  TokenCount cached_tokens = {};
};

// Submits and waits, so never from a listener. Throws as Generate.
std::vector<TextAnswer> GenerateText(TextEngine& engine, TextRequest request);

}  // namespace quire

#endif  // QUIRE_TEXTGEN_TEXT_ENGINE_H_
