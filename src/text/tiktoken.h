// Tokenizers in tiktoken's form, as Kimi-K2 and Moonlight have them: tiktoken.model, a line for each
// token with its bytes in base64 and its id, which is also how urgent it is to merge into it; and
// tokenizer_config.json, which names the special tokens behind them.
#ifndef QUIRE_TEXT_TIKTOKEN_H_
#define QUIRE_TEXT_TIKTOKEN_H_

#include <filesystem>
#include <string_view>

#include "text/tokenizer_config.h"
#include "text/tokenizer_parts.h"

namespace quire {

// Both throw Error(kInvalidArgument) with the file and the line, or the key.
TokenizerParts ReadTiktoken(const std::filesystem::path& folder);
TokenizerParts ParseTiktoken(std::string_view ranks, std::string_view source,
                             const TokenizerConfig& config);

}  // namespace quire

#endif  // QUIRE_TEXT_TIKTOKEN_H_
