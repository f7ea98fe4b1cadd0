// Tokenizers in the form of the "tokenizers" library: tokenizer.json, and what
// tokenizer_config.json says besides.
#ifndef QUIRE_TEXT_TOKENIZER_JSON_H_
#define QUIRE_TEXT_TOKENIZER_JSON_H_

#include <filesystem>

#include "io/json.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_parts.h"

namespace quire {

// Both throw Error(kInvalidArgument) with the file, the key, the expected and the actual; also for
// whatever the file asks for and we do not do.
TokenizerParts ReadTokenizerJson(const std::filesystem::path& folder);
TokenizerParts ParseTokenizerJson(const JsonRef& root, const TokenizerConfig& config);

}  // namespace quire

#endif  // QUIRE_TEXT_TOKENIZER_JSON_H_
