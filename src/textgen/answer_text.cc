#include "textgen/answer_text.h"

#include <utility>

namespace quire {

AnswerText::AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       AnswerTextOptions options)
    : detokenizer_(tokenizer, prompt, {.skip_special_tokens = options.skip_special_tokens}),
      stops_(std::move(options.stop)),
      include_stop_(options.include_stop),
      tokens_before_search_(options.min_tokens) {
  if (options.reasoning) splitter_.emplace(*options.reasoning);
}

ReasoningPieces AnswerText::Put(int32_t token) {
  if (stopped_by()) return {};
  const std::string text = detokenizer_.Put(token);
  if (tokens_before_search_ > 0) {
    --tokens_before_search_;
    return Split(text);
  }
  return Split(WithStop(stops_.Put(text)));
}

ReasoningPieces AnswerText::Flush() {
  ReasoningPieces pieces;
  if (!stopped_by()) {
    std::string rest = stops_.Put(detokenizer_.Flush());
    rest += stops_.Flush();
    pieces = Split(WithStop(std::move(rest)));
  }
  if (splitter_) {
    ReasoningPieces last = splitter_->Flush();
    pieces.reasoning += last.reasoning;
    pieces.content += last.content;
  }
  return pieces;
}

std::string AnswerText::WithStop(std::string text) const {
  if (include_stop_ && stopped_by()) text += *stopped_by();
  return text;
}

ReasoningPieces AnswerText::Split(const std::string& text) {
  if (splitter_) return splitter_->Put(text);
  return {.reasoning = {}, .content = text};
}

}  // namespace quire
