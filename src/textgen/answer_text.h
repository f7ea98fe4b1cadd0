// AnswerText turns the tokens of one answer into its text: characters are made whole, stop strings cut
// off, and reasoning is kept apart.
#ifndef QUIRE_TEXTGEN_ANSWER_TEXT_H_
#define QUIRE_TEXTGEN_ANSWER_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"
#include "textgen/stop_strings.h"

namespace quire {

struct AnswerTextOptions {
  // Looked for in all of the text, reasoning and its tags too; null: none.
  std::shared_ptr<const StopAutomaton> stop = {};
  bool include_stop =
      false;  // the stop string that is found ends the text, rather than what precedes it
  int64_t min_tokens = 0;  // the text of so many tokens is not searched
  bool skip_special_tokens = true;
  std::optional<ReasoningStart> reasoning = {};  // nullopt: all is content
};

class AnswerText {
 public:
  // `prompt` is what the answer continues. `tokenizer` must outlive this.
  AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
             AnswerTextOptions options);

  // The text that this token makes clear; often empty.
  ReasoningPieces Put(int32_t token);
  // The text that was held back, at the end of the answer.
  ReasoningPieces Flush();

  // The stop string that was found: the answer has ended, and what follows is none of it.
  const std::optional<std::string>& stopped_by() const { return stops_.found(); }

 private:
  ReasoningPieces Split(const std::string& text);
  // Text that was searched, with the stop string that was found behind it, if it is asked for.
  std::string WithStop(std::string text) const;

  Detokenizer detokenizer_;
  StopStrings stops_;
  std::optional<ReasoningSplitter> splitter_;
  bool include_stop_;
  int64_t tokens_before_search_;
};

}  // namespace quire

#endif  // QUIRE_TEXTGEN_ANSWER_TEXT_H_
