// What a Tokenizer is made of. The readers of files make it; nothing else looks inside.
#ifndef QUIRE_TEXT_TOKENIZER_PARTS_H_
#define QUIRE_TEXT_TOKENIZER_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/run_limits.h"
#include "text/string_ids.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"

namespace quire {

// More is not a tokenizer but an attempt to fill the memory; the largest have a quarter million.
inline constexpr int32_t kMaxVocabSize = 1 << 21;

struct TokenRoles {
  std::optional<int32_t> bos = {};
  std::optional<int32_t> eos = {};
  std::optional<int32_t> pad = {};
  std::optional<int32_t> unk = {};
};

// What is put around a text if asked for.
struct TokenFrame {
  std::vector<int32_t> before = {};
  std::vector<int32_t> behind = {};
};

struct TokenizerParts {
  std::optional<RunLimits> run_limits = {};  // where a text is cut before anything else
  AddedTokens added_tokens;
  Normalizer normalizer = {};
  PreTokenizer pre_tokenizer = {};
  Bpe bpe;
  TokenDecoder decoder;
  StringIds spellings = {};  // of all tokens
  TokenFrame frame = {};
  TokenRoles roles = {};
};

}  // namespace quire

#endif  // QUIRE_TEXT_TOKENIZER_PARTS_H_
