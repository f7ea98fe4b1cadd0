// Bytes -> a regular expression, a grammar or a schema, by the first byte: an automaton whose masks are
// what it accepts, or an Error that says why not.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "text/grammar/automaton.h"
#include "text/grammar/ebnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex_grammar.h"
#include "text/grammar/test_vocabulary.h"
#include "text/grammar/token_grammar.h"

namespace quire {
namespace {

Grammar Parse(uint8_t kind, std::string_view text) {
  if (kind % 3 == 0) return ParseEbnf(text, "ebnf");
  if (kind % 3 == 1) {
    return JsonSchemaGrammar(ParseOrderedJson(text, "schema", {.max_depth = 32}), "schema");
  }
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  grammar.Define(root, AddRegex(grammar, text, "regex"));
  grammar.SetRoot(root);
  return grammar;
}

// A few tokens along a way that the text itself chooses.
void Follow(const std::shared_ptr<const TokenGrammar>& grammar, std::string_view choices) {
  GrammarMatcher matcher(grammar);
  const int64_t vocab_size = grammar->trie().vocab_size();
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(vocab_size)));
  for (size_t i = 0; i < choices.size() && i < 16; ++i) {
    const bool any = matcher.Fill(mask);
    QUIRE_CHECK(any == matcher.can_continue() && (any || matcher.is_complete()));
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocab_size; ++token) {
      const bool accepts = matcher.Accept(token);
      if (accepts) matcher.Rollback(1);
      QUIRE_CHECK(accepts == testing::IsSet(mask, token), "token {}", token);
      if (accepts) allowed.push_back(token);
    }
    if (allowed.empty()) return;
    matcher.Accept(allowed[static_cast<uint8_t>(choices[i]) % allowed.size()]);
  }
}

void Fuzz(uint8_t kind, std::string_view text) {
  static const std::shared_ptr<const VocabularyTrie> trie = testing::JsonTrie();
  try {
    const GrammarAutomaton probe = CompileGrammar(Parse(kind, text));
    if (probe.states.size() > 2000) return;  // to be fast
    Follow(std::make_shared<const TokenGrammar>(CompileGrammar(Parse(kind, text)), trie), text);
  } catch (const Error& error) {
    QUIRE_CHECK(std::string_view(error.what()).find(": ") != std::string_view::npos);
  }
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  quire::Fuzz(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
