// The added tokens of a tokenizer, and where they stand in a text.
#ifndef QUIRE_TEXT_ADDED_TOKENS_H_
#define QUIRE_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer.h"

namespace quire {

// Finds the longest of some strings that begins at a place.
class TokenTrie {
 public:
  void Insert(std::string_view string, int32_t value);  // not empty, not there yet

  struct Found {
    TextSpan span;
    int32_t value = 0;
  };
  // The leftmost at or behind `from`, and of those that begin there the longest.
  std::optional<Found> Find(std::string_view text, size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<char, int32_t>> children = {};  // byte and node, by byte
    int32_t value = -1;                                   // of the string that ends here
  };

  int32_t Child(int32_t node, char byte) const;  // -1: none
  std::optional<Found> LongestAt(std::string_view text, size_t at) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_ = {};  // a string with this byte
};

enum class SpecialTokens { kParse, kLeaveAsText };

// A part of a text: an added token with the white space it takes, or what is between two.
struct TextPart {
  TextSpan span;
  std::optional<int32_t> token = {};
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `tokens` by id, no id and no content twice. `normalized_contents`: of each token that is
  // `normalized`, what the normalizer makes of it; of the others, anything.
  AddedTokens(std::vector<AddedToken> tokens, std::span<const std::string> normalized_contents);

  std::span<const AddedToken> tokens() const { return tokens_; }
  const AddedToken* Find(int32_t id) const;  // null: it is none

  // The parts of a text as it came: with the tokens that are not `normalized`.
  std::vector<TextPart> SplitRaw(std::string_view text, SpecialTokens special) const {
    return Split(raw_, text, special);
  }
  // The parts of a normalized text: with those that are.
  std::vector<TextPart> SplitNormalized(std::string_view text, SpecialTokens special) const {
    return Split(normalized_, text, special);
  }

 private:
  std::vector<TextPart> Split(const TokenTrie& trie, std::string_view text,
                              SpecialTokens special) const;
  bool Counts(const AddedToken& token, std::string_view text, const TextSpan& span,
              SpecialTokens special) const;

  std::vector<AddedToken> tokens_ = {};
  TokenTrie raw_ = {};  // values are indices in tokens_
  TokenTrie normalized_ = {};
  std::optional<Regex> word_at_start_ = {};  // if a token is single_word
  std::optional<Regex> word_at_end_ = {};
};

}  // namespace quire

#endif  // QUIRE_TEXT_ADDED_TOKENS_H_
