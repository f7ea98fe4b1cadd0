#include "textgen/answer_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire {

AnswerText::AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       AnswerTextOptions options)
    : detokenizer_(tokenizer, prompt, {.skip_special_tokens = options.skip_special_tokens}),
      stops_(std::move(options.stop)),
      include_stop_(options.include_stop),
      tokens_before_search_(options.min_tokens) {
  if (options.reasoning) splitter_.emplace(*options.reasoning);
  if (!options.tools) return;
  tools_.emplace(options.tools->format, options.tools->text_parameters);
  parallel_tools_ = options.tools->parallel;
}

AnswerPieces AnswerText::Put(int32_t token) {
  if (has_ended()) return {};
  const std::string text = detokenizer_.Put(token);
  if (tokens_before_search_ > 0) {
    --tokens_before_search_;
    return Split(text);
  }
  return Split(WithStop(stops_.Put(text)));
}

AnswerPieces AnswerText::Flush() {
  if (has_ended_call()) return {};
  ReasoningPieces pieces;
  if (!stopped_by()) {
    std::string rest = stops_.Put(detokenizer_.Flush());
    rest += stops_.Flush();
    pieces = SplitReasoning(WithStop(std::move(rest)));
  }
  if (splitter_) {
    ReasoningPieces last = splitter_->Flush();
    pieces.reasoning += last.reasoning;
    pieces.content += last.content;
  }
  AnswerPieces found = FindCalls(std::move(pieces));
  if (tools_ && !has_ended_call()) {
    ToolPieces last = tools_->Flush();
    found.text.content += last.content;
    std::ranges::move(last.calls, std::back_inserter(found.calls));
  }
  return found;
}

std::string AnswerText::WithStop(std::string text) const {
  if (include_stop_ && stopped_by()) text += *stopped_by();
  return text;
}

ReasoningPieces AnswerText::SplitReasoning(const std::string& text) {
  if (splitter_) return splitter_->Put(text);
  return {.reasoning = {}, .content = text};
}

AnswerPieces AnswerText::Split(const std::string& text) { return FindCalls(SplitReasoning(text)); }

AnswerPieces AnswerText::FindCalls(ReasoningPieces text) {
  if (!tools_) return {.text = std::move(text)};
  ToolPieces found = tools_->Put(text.content);
  if (has_ended_call()) {
    // A token may have the beginning of the next.
    std::erase_if(found.calls, [](const ToolCallDelta& call) { return call.index > 0; });
  }
  return {.text = {.reasoning = std::move(text.reasoning), .content = std::move(found.content)},
          .calls = std::move(found.calls)};
}

}  // namespace quire
