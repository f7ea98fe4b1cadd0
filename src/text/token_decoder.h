// What every token stands for, and how a sequence of tokens becomes text.
#ifndef QUIRE_TEXT_TOKEN_DECODER_H_
#define QUIRE_TEXT_TOKEN_DECODER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer.h"
#include "text/tokenizer.h"

namespace quire {

// How the tokens of a tokenizer are put together.
struct DecodeRules {
  enum class Joining {
    kBytes,  // tokens spell bytes in the byte alphabet; U+FFFD for what is not UTF-8 in the end
    kByteTokens,  // tokens are text, and "<0xE4>" a byte; a run of bytes is UTF-8, or all U+FFFD
    kText,        // tokens are text
  };
  Joining joining = Joining::kBytes;

  std::vector<ReplaceStep> replacements = {};  // in the text of every token

  // Of the joined text, up to so many of this character at the start are left out.
  int64_t strip_count = 0;
  std::string strip_character = {};

  // Spaces that are spelled so (Metaspace), and whether the first token has none.
  std::string metaspace = {};  // empty: no such spelling
  bool first_token_without_metaspace = false;
};

struct SpelledToken {
  int32_t id = 0;
  std::string spelling = {};
  bool special = false;
  // Decoded in place of `spelling`: of an added token that is looked for in the normalized text, what
  // it is there.
  std::optional<std::string> decoded_spelling = {};
};

class TokenDecoder {
 public:
  // No id twice.
  TokenDecoder(const std::vector<SpelledToken>& tokens, const DecodeRules& rules);

  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  bool IsToken(int32_t id) const { return id >= 0 && id < vocab_size() && tokens_[id].exists; }
  bool IsSpecial(int32_t id) const { return IsToken(id) && tokens_[id].special; }

  // Empty if it is no token.
  std::string_view Spelling(int32_t id) const;
  std::string_view Bytes(int32_t id) const;

  // The text of a sequence of tokens, as far as it cannot change any more.
  class Stream {
   public:
    Stream(const TokenDecoder& decoder, const DecodeOptions& options)
        : decoder_(&decoder), options_(options), strip_left_(decoder.strip_count_) {}

    // What is put from now on continues the text of these: only a text's first token is without
    // the space that others have. To be called before anything else.
    void Continue(std::span<const int32_t> before);

    std::string Put(int32_t id);
    std::string Flush();  // and begin anew

   private:
    std::string Join(int32_t id);
    std::string EndByteRun();
    std::string FirstPiece(int32_t id) const;
    std::string Strip(std::string text);

    const TokenDecoder* decoder_;
    DecodeOptions options_;
    int64_t strip_left_;
    bool is_first_ = true;
    std::string pending_ = {};  // bytes
  };

 private:
  struct Token {
    bool exists = false;
    bool special = false;
    bool is_byte = false;
    std::string spelling = {};
    std::string bytes = {};
  };

  Token MakeToken(const SpelledToken& spelled, const DecodeRules& rules) const;

  DecodeRules::Joining joining_;
  int64_t strip_count_;
  std::string strip_character_;
  std::string metaspace_;
  bool first_token_without_metaspace_;
  std::vector<Token> tokens_ = {};  // by id
};

// The byte that "<0xE4>" stands for; null if it is not spelled so.
std::optional<uint8_t> ReadByteToken(std::string_view spelling);
std::string SpellByteToken(uint8_t byte);

}  // namespace quire

#endif  // QUIRE_TEXT_TOKEN_DECODER_H_
