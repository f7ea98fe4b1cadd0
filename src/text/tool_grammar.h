// Tool calls as grammars: texts of one call or more, in a model's own markup, with arguments that the tools'
// JSON Schemas allow.
#ifndef QUIRE_TEXT_TOOL_GRAMMAR_H_
#define QUIRE_TEXT_TOOL_GRAMMAR_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/vocabulary_trie.h"
#include "text/tokenizer.h"
#include "text/tools.h"

namespace quire {

// The parts of a format's markup that a tokenizer has as tokens of their own.
std::vector<std::string> FindToolMarks(ToolFormat format, const Tokenizer& tokenizer);

struct ToolGrammarOptions {
  ToolFormat format = ToolFormat::kDeepseekV31;
  std::span<const ToolDefinition> tools = {};  // at least one
  std::optional<std::string> name = {};        // calls of this tool alone
  bool parallel = true;                        // false: one call
  // Calls may stand in a text, or not. Then schemas hold the arguments of strict tools alone.
  bool in_text = false;
  // FindToolMarks. The grammar has them as MarkedText, so that they are written as these tokens, and no
  // argument can have one.
  std::vector<std::string> marks = {};
};

// Adds rules to a grammar and returns the expression of the calls. Throws Error(kInvalidArgument), naming
// the tool, for a schema that is not supported.
//
// Of formats that write arguments one by one, parameters stand in their schema's order, and a schema must
// have "properties" and not be put together from others ($ref, anyOf, ...); texts have no "</", and no "<"
// where the schema has a pattern or a length.
//
// Of calls in a text, what begins as calls do is calls: the text around them does not have the first tag.
Grammar::Expr AddToolCalls(Grammar& grammar, const ToolGrammarOptions& options);
Grammar ToolCallGrammar(const ToolGrammarOptions& options);

}  // namespace quire

#endif  // QUIRE_TEXT_TOOL_GRAMMAR_H_
