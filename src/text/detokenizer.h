// Token ids to text, one at a time: what a streamed answer is made of.
#ifndef QUIRE_TEXT_DETOKENIZER_H_
#define QUIRE_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>

#include "text/token_decoder.h"
#include "text/tokenizer.h"

namespace quire {

// The pieces that Put and then Flush return, joined, are Tokenizer::Decode of all the ids. Every
// piece is whole UTF-8 characters.
//
// A piece is held back while it can still change. Bytes of a character wait for its other bytes. With
// a tokenizer that falls back to byte tokens (MiniCPM3) a run of byte tokens waits for the token
// behind it: one ill-formed byte makes every byte of its run a U+FFFD.
class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  // Of a text that continues that of the tokens `before`, such as an answer: it keeps the space that
  // some tokenizers leave out at the start of a text. The pieces are what Decode of all tokens has more
  // than Decode of those before, where these end with a character.
  Detokenizer(const Tokenizer& tokenizer, std::span<const int32_t> before,
              const DecodeOptions& options = {});

  // The text that this token completes; often empty.
  std::string Put(int32_t id);

  // The text that was held back: what has no end is U+FFFD. The next Put begins a new text.
  std::string Flush();

 private:
  TokenDecoder::Stream stream_;
};

}  // namespace quire

#endif  // QUIRE_TEXT_DETOKENIZER_H_
