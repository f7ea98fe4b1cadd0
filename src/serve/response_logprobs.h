// The tokens of answers with their log-probabilities, in OpenAI's two forms; openai_response.h says how
// tokens are written.
#ifndef QUIRE_SERVE_RESPONSE_LOGPROBS_H_
#define QUIRE_SERVE_RESPONSE_LOGPROBS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/tokenizer.h"
#include "textgen/text_engine.h"

namespace quire {

// A token of an answer or of an echoed prompt, as it is kept until it is written: some 200 bytes with 20
// alternatives, where its JSON as a tree has 15,000.
struct ScoredToken {
  TokenScore score = {};
  bool is_scored = true;  // false: a prompt's first token, which follows nothing
  int64_t offset = 0;     // completions: where it begins, in characters
};

// {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}
OrderedJson ChatTokenJson(const Tokenizer& tokenizer, const TokenScore& score);

// How the old form writes a token.
std::string CompletionTokenName(const Tokenizer& tokenizer, int32_t token);

// Unicode characters of UTF-8.
int64_t CountCharacters(std::string_view text);

// Where every token of a prompt begins in its text, in characters. Tokens that are not in the text, such
// as a begin token, begin where the next one does.
std::vector<int64_t> PromptOffsets(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const int32_t> tokens);

// Where the tokens of an answer begin, as they come.
class AnswerOffsets {
 public:
  // `start`: characters before the answer. `prompt` is what the answer continues: behind one that has
  // no text, a tokenizer may leave out the first token's space.
  AnswerOffsets(const Tokenizer& tokenizer, std::span<const int32_t> prompt, int64_t start,
                bool skip_special_tokens);

  // A token that begins inside a character begins where that does.
  int64_t Next(int32_t token);

 private:
  const Tokenizer* tokenizer_;
  int64_t characters_;  // begun so far
  bool skip_special_tokens_;
  bool begins_text_;  // no token of prompt and answer has been text yet
};

// JSON has no infinity.
double FiniteLogprob(float logprob);

// The entries of a token in the four lists of completions.
struct CompletionEntry {
  std::string token = {};
  OrderedJson logprob = nullptr;
  OrderedJson top = nullptr;  // of the alternatives and the token itself, one of each name
  int64_t offset = 0;
};
CompletionEntry CompletionTokenEntry(const Tokenizer& tokenizer, const ScoredToken& token);

// The "logprobs" of a choice: {"content", "refusal"} of chat, or
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, lists of one length. null without tokens.
OrderedJson ChatLogprobsJson(const Tokenizer& tokenizer, std::span<const ScoredToken> tokens);
OrderedJson CompletionLogprobsJson(const Tokenizer& tokenizer, std::span<const ScoredToken> tokens);

}  // namespace quire

#endif  // QUIRE_SERVE_RESPONSE_LOGPROBS_H_
