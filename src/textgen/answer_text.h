// AnswerText turns the tokens of one answer into its text: characters are made whole, stop strings cut
// off, and reasoning and calls of tools are kept apart.
#ifndef QUIRE_TEXTGEN_ANSWER_TEXT_H_
#define QUIRE_TEXTGEN_ANSWER_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"
#include "text/tool_call_parser.h"
#include "textgen/stop_strings.h"

namespace quire {

// How calls of tools are found in an answer.
struct ToolCallOptions {
  ToolFormat format = ToolFormat::kDeepseekV31;
  std::shared_ptr<const TextParameters> text_parameters = {};  // as in ToolCallParser
  bool parallel = true;  // false: an answer ends behind its first call
};

struct AnswerTextOptions {
  // Looked for in all of the text, reasoning and its tags too; null: none.
  std::shared_ptr<const StopAutomaton> stop = {};
  bool include_stop =
      false;  // the stop string that is found ends the text, rather than what precedes it
  int64_t min_tokens = 0;  // the text of so many tokens is not searched
  bool skip_special_tokens = true;
  std::optional<ReasoningStart> reasoning = {};  // nullopt: all is content
  // Calls are no content; nullopt: they are. Looked for behind the reasoning.
  std::optional<ToolCallOptions> tools = {};
};

struct AnswerPieces {
  ReasoningPieces text = {};
  std::vector<ToolCallDelta> calls = {};
};

class AnswerText {
 public:
  // `prompt` is what the answer continues. `tokenizer` must outlive this.
  AnswerText(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
             AnswerTextOptions options);

  // The text that this token makes clear; often empty.
  AnswerPieces Put(int32_t token);
  // The text that was held back, at the end of the answer.
  AnswerPieces Flush();

  // What follows is none of the answer: a stop string was found, or the one call that there may be.
  bool has_ended() const { return stopped_by() || has_ended_call(); }
  // The stop string that was found.
  const std::optional<std::string>& stopped_by() const { return stops_.found(); }

 private:
  ReasoningPieces SplitReasoning(const std::string& text);
  AnswerPieces Split(const std::string& text);
  AnswerPieces FindCalls(ReasoningPieces text);
  bool has_ended_call() const {
    return tools_ && !parallel_tools_ && tools_->num_whole_calls() > 0;
  }
  // Text that was searched, with the stop string that was found behind it, if it is asked for.
  std::string WithStop(std::string text) const;

  Detokenizer detokenizer_;
  StopStrings stops_;
  std::optional<ReasoningSplitter> splitter_;
  std::optional<ToolCallParser> tools_;
  bool parallel_tools_ = true;
  bool include_stop_;
  int64_t tokens_before_search_;
};

}  // namespace quire

#endif  // QUIRE_TEXTGEN_ANSWER_TEXT_H_
