// What the text of an answer is held to - a JSON Schema, a regular expression, a choice, a grammar - and
// the constraint on its tokens that this becomes.
#ifndef QUIRE_TEXTGEN_TEXT_CONSTRAINT_H_
#define QUIRE_TEXTGEN_TEXT_CONSTRAINT_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step/token_constraint.h"
#include "text/grammar/token_grammar.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"
#include "text/tool_grammar.h"

namespace quire {

struct TextConstraint {
  enum class Kind {
    kJsonObject,  // any
    kJsonSchema,  // texts[0] is one
    kRegex,       // texts[0] is one, of the whole answer
    kChoice,      // one of the texts
    kEbnf,        // texts[0] is a grammar: text/grammar/ebnf.h
  };
  Kind kind = Kind::kJsonObject;
  std::vector<std::string> texts = {};
  std::string source = {};  // in messages: the field it came from
};

// The grammar of a constraint. Throws Error(kInvalidArgument), naming the source.
Grammar MakeGrammar(const TextConstraint& constraint);

// Constraints, compiled for one vocabulary. The last of them are kept, with what they have learned.
// Any thread may use it.
class ConstraintCompiler {
 public:
  // What is kept, at most, in number and in bytes; the last one in any case. An answer keeps its own.
  static constexpr size_t kMaxKept = 64;
  static constexpr int64_t kMaxKeptBytes = int64_t{256} << 20;

  // `tokenizer` outlives this. `vocab_size` is the model's.
  ConstraintCompiler(const Tokenizer& tokenizer, int64_t vocab_size,
                     int64_t max_kept_bytes = kMaxKeptBytes)
      : tokenizer_(tokenizer), vocab_size_(vocab_size), max_kept_bytes_(max_kept_bytes) {}

  // Throws Error(kInvalidArgument), naming the constraint's source.
  std::shared_ptr<const TokenGrammar> Compile(const TextConstraint& constraint);
  // Calls of tools and, if there is one, texts of a constraint instead. `calls.marks` are found here.
  // Throws as AddToolCalls, too.
  std::shared_ptr<const TokenGrammar> CompileCalls(
      ToolGrammarOptions calls, const std::optional<TextConstraint>& otherwise = {});

  // Of the grammars that are kept, with their keys.
  int64_t kept_bytes() const;

 private:
  // The grammar under this key, or what `make` makes.
  std::shared_ptr<const TokenGrammar> Keep(
      const std::string& key, const std::function<std::shared_ptr<const TokenGrammar>()>& make);
  std::shared_ptr<const VocabularyTrie> Trie(const std::vector<std::string>& marks = {});
  // Under the lock.
  int64_t KeptBytes() const;
  void ForgetTheOldest();

  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const int64_t max_kept_bytes_;

  mutable std::mutex mutex_;  // over all below
  // By their marks, each made with the first constraint that needs it.
  std::map<std::vector<std::string>, std::shared_ptr<const VocabularyTrie>> tries_;
  using Kept = std::list<std::pair<std::string, std::shared_ptr<const TokenGrammar>>>;
  Kept kept_;  // the last used first
  std::unordered_map<std::string, Kept::iterator> by_key_;
};

struct AnswerConstraintOptions {
  std::vector<int32_t> end_tokens = {};  // may follow where the grammar's text may end
  // kReasoning: what comes before "</think>", and white space behind it in the same token, is free; but
  // the answer cannot end there, without a text of the grammar. kEither: the same, if the answer begins with
  // the token "<think>", behind such white space as the grammar has.
  ReasoningStart start = ReasoningStart::kContent;
};

// `tokenizer` must outlive what is made.
std::unique_ptr<TokenConstraint> MakeAnswerConstraint(std::shared_ptr<const TokenGrammar> grammar,
                                                      const Tokenizer& tokenizer,
                                                      AnswerConstraintOptions options);

}  // namespace quire

#endif  // QUIRE_TEXTGEN_TEXT_CONSTRAINT_H_
