// Vocabularies and samples for tests of grammars.
#ifndef QUIRE_TEXT_GRAMMAR_TEST_VOCABULARY_H_
#define QUIRE_TEXT_GRAMMAR_TEST_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/token_grammar.h"
#include "text/grammar/vocabulary_trie.h"

namespace quire::testing {

// All bytes, and then these.
inline std::shared_ptr<const VocabularyTrie> ByteTrie(const std::vector<std::string>& more = {}) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  bytes.insert(bytes.end(), more.begin(), more.end());
  return std::make_shared<const VocabularyTrie>(
      std::vector<std::string_view>(bytes.begin(), bytes.end()));
}

// Pieces that end strings, nest, cut characters and cross from one rule to the next.
inline std::shared_ptr<const VocabularyTrie> JsonTrie() {
  return ByteTrie({"{\"",  "\":",     "\": ",     "\",",      "\"}",       "\"]",    "}]",
                   "}}",   "},",      "[[",       "]]",       "[{",        "{}",     "[]",
                   "\"\"", "true",    "fal",      "se,",      "null}",     "null",   "12",
                   "-1",   "0.5",     "1e",       "e+",       ", ",        "\n  ",   "abc",
                   "\\n",  "\\u00",   "\xc3\xa9", "\xf0\x9f", "\x98\x80",  "a\":",   "b\",\"",
                   "name", "\"a\":1", "},{\"",    ": [",      "\"}]}",     "\"name", "   ",
                   "\t",   "\\\"",    "99",       "00",       "\",\"b\":", "a",      "}",
                   ",\"",  "1,",      "1}",       "1]"});
}

inline std::shared_ptr<const TokenGrammar> MakeTokenGrammar(
    const Grammar& grammar, std::shared_ptr<const VocabularyTrie> trie = ByteTrie()) {
  return std::make_shared<const TokenGrammar>(CompileGrammar(grammar), std::move(trie));
}

// Whether `text` is one of the grammar's, byte by byte.
inline bool Matches(const std::shared_ptr<const TokenGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  for (const char byte : text) {
    if (!matcher.Accept(static_cast<uint8_t>(byte))) return false;
  }
  return matcher.is_complete();
}

inline bool IsSet(const std::vector<uint32_t>& mask, int64_t token) {
  return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}

// A text of the grammar, drawn token by token, each of those allowed being as likely as any other. Where
// the text may end it does, one time in `end_odds`. nullopt: it had no end within `max_tokens`.
inline std::optional<std::string> DrawText(const std::shared_ptr<const TokenGrammar>& grammar,
                                           std::mt19937& random, uint32_t end_odds = 2,
                                           int max_tokens = 4000) {
  GrammarMatcher matcher(grammar);
  const int64_t vocab_size = grammar->trie().vocab_size();
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(vocab_size)));
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    if (matcher.is_complete() && (!matcher.can_continue() || random() % end_odds == 0)) return text;
    if (!matcher.Fill(mask)) return std::nullopt;
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocab_size; ++token) {
      if (IsSet(mask, token)) allowed.push_back(token);
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (!matcher.Accept(token)) return std::nullopt;
    text += grammar->trie().Bytes(token);
  }
  return std::nullopt;
}

}  // namespace quire::testing

#endif  // QUIRE_TEXT_GRAMMAR_TEST_VOCABULARY_H_
