// Splits what a model writes into its reasoning, between <think> and </think>, and its answer, as
// the text comes in.
#ifndef QUIRE_TEXT_REASONING_H_
#define QUIRE_TEXT_REASONING_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// Either part may be empty. The tags are in neither.
struct ReasoningPieces {
  std::string reasoning;
  std::string content;
};

// Which part the text begins in: kReasoning where the prompt ended with <think>; kEither where it did not,
// and the model is one that writes the tag itself. (Any model's <think> is understood.)
enum class ReasoningStart { kContent, kReasoning, kEither };

// The concatenated results do not depend on how the text is cut into pieces. A piece that could be
// the beginning of a tag is kept back until it is clear; Flush gives it out.
//
// Only one stretch of reasoning is recognised: at the beginning of the text, after nothing but
// whitespace (which is dropped), or from the start with kReasoning. A <think> later in the answer
// is the answer's own text, and so is every </think> after the first.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(ReasoningStart start);

  ReasoningPieces Put(std::string_view piece);
  ReasoningPieces Flush();

 private:
  enum class State { kBeforeThink, kReasoning, kContent };

  void Advance(ReasoningPieces* out);
  bool AdvanceBeforeThink();
  bool AdvanceReasoning(ReasoningPieces* out);

  State state_;
  std::string held_;  // not yet given out: whitespace before the text, or the beginning of a tag
  size_t num_space_ =
      0;  // kBeforeThink: bytes of whitespace that held_ begins with, as far as known
};

}  // namespace quire

#endif  // QUIRE_TEXT_REASONING_H_
