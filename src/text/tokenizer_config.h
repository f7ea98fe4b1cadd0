// What Quire reads of a model folder's tokenizer_config.json. (The chat template in it is read
// elsewhere; the rest is for other programs.)
#ifndef QUIRE_TEXT_TOKENIZER_CONFIG_H_
#define QUIRE_TEXT_TOKENIZER_CONFIG_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/string_ids.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace quire {

struct TokenizerConfig {
  std::string where = {};  // the file
  // As they are spelled.
  std::optional<std::string> bos_token = {};
  std::optional<std::string> eos_token = {};
  std::optional<std::string> pad_token = {};
  std::optional<std::string> unk_token = {};
  // Said or not: if either is said, the two replace the post_processor of tokenizer.json.
  std::optional<bool> add_bos_token = {};
  std::optional<bool> add_eos_token = {};
  std::vector<AddedToken> added_tokens = {};  // added_tokens_decoder, by id
};

TokenizerConfig ParseTokenizerConfig(const JsonRef& root);

// The flags and the content of an added token, as both files have them. Its id is not set.
AddedToken ParseAddedToken(const JsonRef& token);

// The ids of the roles' tokens. Throws Error(kInvalidArgument) if there is no such token.
TokenRoles FindRoles(const TokenizerConfig& config, const StringIds& spellings);

// What add_bos_token and add_eos_token ask for; null if neither is said.
std::optional<TokenFrame> FrameOf(const TokenizerConfig& config, const TokenRoles& roles);

}  // namespace quire

#endif  // QUIRE_TEXT_TOKENIZER_CONFIG_H_
