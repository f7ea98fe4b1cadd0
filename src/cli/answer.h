// One answer while it comes.
#ifndef QUIRE_CLI_ANSWER_H_
#define QUIRE_CLI_ANSWER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/interrupt.h"
#include "engine/request.h"
#include "text/reasoning.h"
#include "textgen/text_engine.h"

namespace quire::cli {

struct ShownAnswer {
  ReasoningPieces text = {};  // as shown: nothing that came after an interrupt
  FinishReason finish = FinishReason::kNone;
  std::optional<std::string> stopped_by = {};  // the stop string, if one was found
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t output_tokens = 0;
  double first_token_seconds = 0;  // from asking to the first token; 0: none came
  double decode_seconds = 0;       // from the first token to the last

  // Of the tokens behind the first; 0 if there are none.
  double TokensPerSecond() const;
};

// Takes the text as it becomes clear, on the thread that waits for the answer; empty: nobody looks on.
using ShowPieces = std::function<void(const ReasoningPieces&)>;

// Asks for one answer and waits until it ends; an interrupt ends it as kCancelled. Throws Error as
// TextEngine::Submit does, InternalError if a step failed, and what `show` throws.
ShownAnswer ShowAnswer(TextEngine& engine, TextRequest request, const Interrupt& interrupt,
                       const ShowPieces& show);

// "prompt 12 tokens (0 cached), answer 30 tokens (stop), 41.0 tokens/s, first after 0.10 s".
std::string Describe(const ShownAnswer& answer);

// The content goes to stdout, and nothing else. Reasoning goes to stderr, dimmed on a terminal.
class AnswerPrinter {
 public:
  enum class Reasoning { kShown, kHidden };
  explicit AnswerPrinter(Reasoning reasoning);

  // Throws std::system_error if stdout does not take it.
  void Show(const ReasoningPieces& pieces);
  // Ends the line of reasoning that no content followed.
  void Finish();

 private:
  Reasoning reasoning_;
  bool in_reasoning_ = false;
};

// `text` to stderr, dimmed if that is a terminal.
void PrintDimmed(const std::string& text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_ANSWER_H_
