// A VocabularyTrie is a vocabulary as a tree of bytes: tokens that begin alike are looked at together.
#ifndef QUIRE_TEXT_GRAMMAR_VOCABULARY_TRIE_H_
#define QUIRE_TEXT_GRAMMAR_VOCABULARY_TRIE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quire {

// Nodes are numbered depth first: what is below node n are the nodes n + 1 to n's end. Node 0 is the
// root, which stands for no bytes. Immutable.
class VocabularyTrie {
 public:
  struct Node {
    int32_t end = 0;          // behind the last node below
    int32_t first_token = 0;  // of those spelled by the way to it
    uint16_t depth = 0;
    uint8_t byte = 0;  // the last of the way
  };

  // Tokens by id; an empty text is a token that nothing spells.
  explicit VocabularyTrie(std::span<const std::string_view> tokens);

  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  std::span<const int32_t> TokensAt(int32_t node) const {
    const auto n = static_cast<size_t>(node);
    const auto first = static_cast<size_t>(nodes_[n].first_token);
    return std::span(tokens_).subspan(first,
                                      static_cast<size_t>(nodes_[n + 1].first_token) - first);
  }
  std::string_view Bytes(int32_t token) const;  // empty if nothing spells it
  int64_t vocab_size() const { return std::ssize(bytes_); }
  int32_t max_depth() const { return max_depth_; }

 private:
  std::vector<Node> nodes_;      // and one behind the last
  std::vector<int32_t> tokens_;  // node after node
  std::vector<std::string> bytes_;
  int32_t max_depth_ = 0;
};

// Of all tokens that may be a part of text: those of a tokenizer but the special ones. `vocab_size` as
// the model has it, which may have more rows.
//
// Tokens whose text is one of `marks` are there too, special or not, as MarkedText: a grammar says where
// they may stand, and no other text can have them.
VocabularyTrie MakeVocabularyTrie(const Tokenizer& tokenizer, int64_t vocab_size,
                                  std::span<const std::string> marks = {});

// A byte that is in no UTF-8, and then the text.
std::string MarkedText(std::string_view mark);

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_VOCABULARY_TRIE_H_
