// The choices of one answer as its events come: what WholeAnswer and StreamedAnswer share.
#ifndef QUIRE_SERVE_RESPONSE_CHOICES_H_
#define QUIRE_SERVE_RESPONSE_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/openai_response.h"
#include "serve/response_logprobs.h"

namespace quire::internal {

// What one event adds to its choice.
struct ChoicePiece {
  size_t index = 0;
  bool is_first = false;
  std::string reasoning = {};
  std::string content = {};                       // with the prompt before it, if echoed
  std::vector<ToolCallDelta> calls = {};          // with an id where they have a name
  std::vector<ScoredToken> tokens = {};           // if log-probabilities are asked for
  std::optional<int32_t> token_id = {};           // if ids are asked for
  std::optional<std::string> finish_reason = {};  // the choice has ended
  std::optional<std::string> stopped_by = {};     // by this stop string
};

class Choices {
 public:
  explicit Choices(AnswerShape shape);

  // nullopt: nothing to show, since there is an error, or this is one.
  std::optional<ChoicePiece> Take(size_t prompt, const TextEvent& event);

  bool done() const { return num_ended_ == choices_.size(); }
  const std::optional<ApiError>& error() const { return error_; }
  Usage usage() const;
  Usage usage(size_t choice) const;  // of one choice and its prompt
  const AnswerShape& shape() const { return shape_; }
  const AnswerPrompt& prompt(size_t choice) const {
    return shape_.prompts[choice / static_cast<size_t>(shape_.n)];
  }
  size_t size() const { return choices_.size(); }

 private:
  struct Choice {
    bool begun = false;
    int64_t output_tokens = 0;
    bool has_calls = false;
    std::optional<AnswerOffsets> offsets = {};  // completions with logprobs
  };

  void BeginEcho(size_t prompt, ChoicePiece& piece);
  int64_t AnswerStart(size_t prompt) const;

  const AnswerShape shape_;
  std::vector<Choice> choices_;
  std::vector<int64_t> cached_tokens_;                               // by prompt
  std::vector<std::vector<TokenEvent::PromptToken>> prompt_scores_;  // by prompt
  size_t num_ended_ = 0;
  std::optional<ApiError> error_;
};

}  // namespace quire::internal

#endif  // QUIRE_SERVE_RESPONSE_CHOICES_H_
