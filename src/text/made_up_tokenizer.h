// A tokenizer for a vocabulary that no file describes, that of a model whose weights are made up.
//
// Such a model draws from all of its vocabulary, and whoever measures a server by it wants every token to be
// text, as it nearly always is: a token of no text shows nowhere, and a time to the first text would be that of
// the first token that has some. So the first 256 tokens are bytes, and all others words of small letters, each
// with a space before it: common ones (text/common_words.h), then all that letters can spell, short ones first.
// What words spell is encoded as them again.
#ifndef QUIRE_TEXT_MADE_UP_TOKENIZER_H_
#define QUIRE_TEXT_MADE_UP_TOKENIZER_H_

#include <cstdint>
#include <memory>

#include "text/tokenizer.h"

namespace quire {

// No token ends a text. Throws Error(kInvalidArgument) unless there are as many tokens as bytes, and no more than
// a tokenizer may have.
std::unique_ptr<const Tokenizer> MakeUpTokenizer(int64_t vocab_size);

}  // namespace quire

#endif  // QUIRE_TEXT_MADE_UP_TOKENIZER_H_
