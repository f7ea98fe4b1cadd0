#include "text/token_decoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/replace_all.h"
#include "text/utf8.h"

namespace quire {
std::optional<uint8_t> ReadByteToken(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return {};
  const int high = HexDigit(spelling[3]);
  const int low = HexDigit(spelling[4]);
  if (high < 0 || low < 0) return {};
  return static_cast<uint8_t>(high * 16 + low);
}

std::string SpellByteToken(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

TokenDecoder::TokenDecoder(const std::vector<SpelledToken>& tokens, const DecodeRules& rules)
    : joining_(rules.joining),
      strip_count_(rules.strip_count),
      strip_character_(rules.strip_character),
      metaspace_(rules.metaspace),
      first_token_without_metaspace_(rules.first_token_without_metaspace) {
  int32_t max_id = -1;
  for (const SpelledToken& token : tokens) max_id = std::max(max_id, token.id);
  tokens_.resize(max_id + 1);
  for (const SpelledToken& token : tokens) {
    QUIRE_CHECK(!tokens_[token.id].exists, "token {} comes twice", token.id);
    tokens_[token.id] = MakeToken(token, rules);
  }
}

TokenDecoder::Token TokenDecoder::MakeToken(const SpelledToken& spelled,
                                            const DecodeRules& rules) const {
  Token token{.exists = true, .special = spelled.special, .spelling = spelled.spelling};
  token.bytes = spelled.decoded_spelling.value_or(spelled.spelling);
  if (joining_ == DecodeRules::Joining::kBytes) {
    // An added token may be spelled with characters that stand for no byte: then it is its text.
    if (std::optional<std::string> bytes = ReadSpelledBytes(token.bytes)) token.bytes = *bytes;
    return token;
  }
  const size_t max_bytes = MaxReplacedBytes(token.bytes.size());
  for (const ReplaceStep& step : rules.replacements) {
    token.bytes = Replace(step, token.bytes, max_bytes);
  }
  if (!metaspace_.empty()) token.bytes = ReplaceAll(token.bytes, metaspace_, " ");
  const std::optional<uint8_t> byte = ReadByteToken(token.bytes);
  if (joining_ == DecodeRules::Joining::kByteTokens && byte) {
    token.is_byte = true;
    token.bytes = static_cast<char>(*byte);
  }
  return token;
}

std::string_view TokenDecoder::Spelling(int32_t id) const {
  return IsToken(id) ? std::string_view(tokens_[id].spelling) : std::string_view();
}

std::string_view TokenDecoder::Bytes(int32_t id) const {
  return IsToken(id) ? std::string_view(tokens_[id].bytes) : std::string_view();
}

void TokenDecoder::Stream::Continue(std::span<const int32_t> before) {
  // Mostly the first token says it.
  for (const int32_t id : before) {
    if (!is_first_ && strip_left_ == 0) break;
    Put(id);
  }
  if (!pending_.empty()) Strip(pending_);
  pending_.clear();  // bytes without an end end with their text
}

std::string TokenDecoder::Stream::Put(int32_t id) {
  if (!decoder_->IsToken(id)) return {};
  if (options_.skip_special_tokens && decoder_->IsSpecial(id)) return {};
  std::string text = Strip(Join(id));
  is_first_ = false;
  return text;
}

std::string TokenDecoder::Stream::Join(int32_t id) {
  const Token& token = decoder_->tokens_[id];
  if (decoder_->joining_ == DecodeRules::Joining::kBytes) {
    pending_ += token.bytes;
    return TakeSettled(pending_);
  }
  if (token.is_byte) {
    pending_ += token.bytes;
    return {};
  }
  return EndByteRun() + (is_first_ ? FirstPiece(id) : token.bytes);
}

std::string TokenDecoder::Stream::EndByteRun() {
  std::string bytes = std::exchange(pending_, {});
  if (IsUtf8(bytes)) return bytes;
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) text += kReplacementUtf8;
  return text;
}

std::string TokenDecoder::Stream::FirstPiece(int32_t id) const {
  const Token& token = decoder_->tokens_[id];
  if (!decoder_->first_token_without_metaspace_) return token.bytes;
  return ReplaceAll(token.spelling, decoder_->metaspace_, "");
}

std::string TokenDecoder::Stream::Strip(std::string text) {
  const std::string& strip = decoder_->strip_character_;
  while (strip_left_ > 0 && !text.empty()) {
    if (text.starts_with(strip)) {
      text.erase(0, strip.size());
      --strip_left_;
    } else {
      strip_left_ = 0;
    }
  }
  return text;
}

std::string TokenDecoder::Stream::Flush() {
  const bool is_bytes = decoder_->joining_ == DecodeRules::Joining::kBytes;
  std::string text = Strip(is_bytes ? ReplaceIllFormed(pending_) : EndByteRun());
  *this = Stream(*decoder_, options_);
  return text;
}

}  // namespace quire
