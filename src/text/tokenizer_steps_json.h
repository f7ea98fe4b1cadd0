// The steps of a tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder. Each throws
// Error(kInvalidArgument) for a step, or an option of one, that we do not do.
#ifndef QUIRE_TEXT_TOKENIZER_STEPS_JSON_H_
#define QUIRE_TEXT_TOKENIZER_STEPS_JSON_H_

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer_parts.h"

namespace quire {

// Throws Error(kInvalidArgument) if an object has a key besides these.
void RequireKnownKeys(const JsonRef& object, std::initializer_list<std::string_view> known);

Normalizer ParseNormalizer(const std::optional<JsonRef>& normalizer);

struct ParsedPreTokenizer {
  PreTokenizer pre_tokenizer = {};
  BpeSpec::Unit unit = BpeSpec::Unit::kCharacter;  // of its words: bytes, if it ends in ByteLevel
};
ParsedPreTokenizer ParsePreTokenizer(const std::optional<JsonRef>& pre_tokenizer);

TokenFrame ParsePostProcessor(const std::optional<JsonRef>& post_processor);

DecodeRules ParseDecoder(const JsonRef& decoder);

}  // namespace quire

#endif  // QUIRE_TEXT_TOKENIZER_STEPS_JSON_H_
