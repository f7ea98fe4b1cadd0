// A Tokenizer turns text into token ids and back, as the model's own files say.
//
//   text -> added tokens cut out -> normalizer -> pre-tokenizer (words) -> BPE -> ids
//
// A folder has either tokenizer.json (the "tokenizers" library: DeepSeek, GLM, MiniCPM3) or
// tiktoken.model (Kimi-K2, Moonlight); both become the same parts. What a file asks for and we do not
// do is refused when it is opened.
//
// The ids are those of the library that the files were made for, and so are decoded texts
// (tools/check_tokenizer.py compares), but for these:
//   1. a character that Unicode assigned after PCRE2's tables were made (14.0 in 10.42) is no letter,
//      digit, mark or sign for us, so that a word may end beside it where it would not elsewhere;
//   2. a special token that is looked for in the normalized text, and that the normalizer changes, is
//      left out of decoded text like any other when asked for; tokenizers 0.23 keeps it.
//
// A Tokenizer is immutable: any number of threads may use it.
#ifndef QUIRE_TEXT_TOKENIZER_H_
#define QUIRE_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct TokenizerParts;
class TokenDecoder;

// A token that is found in the text before anything else looks at it.
struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool special = false;      // left out of decoded text when asked for
  bool control = false;      // not looked for when special tokens are not parsed
  bool normalized = false;   // looked for in the normalized text, not in the text as it came
  bool single_word = false;  // not directly beside a word character
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it

  bool operator==(const AddedToken&) const = default;
};

struct EncodeOptions {
  // Put around the text what the files put around every text (DeepSeek: a begin token). Not for text
  // from a chat template, which writes such tokens itself.
  bool add_special_tokens = false;
  // Find special tokens in the text. Off, "<|im_end|>" from a user is six characters and some
  // letters like any other.
  bool parse_special_tokens = true;
  // More are an Error(kCapacityExceeded), thrown as soon as they are too many.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  // Once asked to stop, Encode throws Error(kCapacityExceeded) within a word, or a few thousand merges.
  std::stop_token stop = {};
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);
  ~Tokenizer();

  // Text that is not UTF-8 is encoded as if every ill-formed part were U+FFFD, as Python's
  // bytes.decode(errors="replace") would make it. Throws Error(kCapacityExceeded) if a pattern of
  // the tokenizer needs more steps on this text than it is given.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // UTF-8, whatever the ids. An id that is no token is left out.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // One more than the highest id. There may be ids below it that are no token, and a model may have
  // more rows than this.
  int32_t vocab_size() const;

  // The bytes that a token stands for inside a text; maybe not UTF-8 by themselves. Empty if `id` is
  // no token.
  std::string_view TokenBytes(int32_t id) const;

  // The id of a token as the files spell it ("<|im_end|>"), added or not.
  std::optional<int32_t> FindToken(std::string_view token) const;
  // How the files spell it; empty if `id` is no token.
  std::string_view TokenSpelling(int32_t id) const;

  std::span<const AddedToken> added_tokens() const;  // by id
  bool IsSpecial(int32_t id) const;

  // The roles that tokenizer_config.json names. (Which tokens end a text, generation_config.json
  // says; it may name more than one.)
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> pad() const;
  std::optional<int32_t> unk() const;

  const TokenDecoder& decoder() const;  // what a Detokenizer works with

 private:
  std::unique_ptr<const TokenizerParts> parts_;
};

// Whether a model folder has the files of one, right or not.
bool HasTokenizer(const std::filesystem::path& folder);

// Reads the tokenizer of a model folder. Throws Error(kInvalidArgument) with the file, the key, the
// expected and the actual.
std::unique_ptr<const Tokenizer> OpenTokenizer(const std::filesystem::path& folder);

}  // namespace quire

#endif  // QUIRE_TEXT_TOKENIZER_H_
