// A hundred short and common words of English: with the space before it, each is one token of most large
// vocabularies.
#ifndef QUIRE_TEXT_COMMON_WORDS_H_
#define QUIRE_TEXT_COMMON_WORDS_H_

#include <span>
#include <string_view>

namespace quire {

// All different, of small letters.
std::span<const std::string_view> CommonWords();

}  // namespace quire

#endif  // QUIRE_TEXT_COMMON_WORDS_H_
