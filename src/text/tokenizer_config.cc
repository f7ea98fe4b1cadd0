#include "text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// "<s>", or an object that has it as its content, or null.
std::optional<std::string> ParseTokenName(const JsonRef& root, std::string_view key) {
  const std::optional<JsonRef> token = root.Find(key);
  if (!token) return std::nullopt;
  return token->value().is_object() ? token->At("content").String() : token->String();
}

std::optional<bool> ParseFlag(const JsonRef& root, std::string_view key) {
  const std::optional<JsonRef> flag = root.Find(key);
  return flag ? std::optional(flag->Bool()) : std::nullopt;
}

int32_t ParseId(const std::string& key, const JsonRef& token) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  Require(error == std::errc() && end == key.data() + key.size() && id >= 0 && id < kMaxVocabSize,
          "{}: expected a key that is a token id below {}, got {}", token.where(), kMaxVocabSize,
          QuoteForMessage(key));
  return id;
}

std::vector<AddedToken> ParseAddedTokensDecoder(const JsonRef& root) {
  std::vector<AddedToken> tokens;
  const std::optional<JsonRef> decoder = root.Find("added_tokens_decoder");
  if (!decoder) return tokens;
  for (const auto& [key, value] : decoder->Members()) {
    AddedToken token = ParseAddedToken(value);
    token.id = ParseId(key, value);
    tokens.push_back(std::move(token));
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

std::optional<int32_t> FindRole(const TokenizerConfig& config, std::string_view key,
                                const std::optional<std::string>& token,
                                const StringIds& spellings) {
  if (!token) return std::nullopt;
  const std::optional<int32_t> id = spellings.Find(*token);
  Require(id.has_value(), "{}: {}: expected a token of the vocabulary, got {}", config.where, key,
          QuoteForMessage(*token));
  return id;
}

}  // namespace

AddedToken ParseAddedToken(const JsonRef& token) {
  const auto flag = [&](std::string_view key) { return token.At(key).Bool(); };
  AddedToken added{.content = token.At("content").String(),
                   .special = flag("special"),
                   .control = flag("special"),
                   .normalized = flag("normalized"),
                   .single_word = flag("single_word"),
                   .lstrip = flag("lstrip"),
                   .rstrip = flag("rstrip")};
  Require(!added.content.empty(), "{}: expected a string that is not empty, got \"\"",
          token.At("content").where());
  return added;
}

TokenizerConfig ParseTokenizerConfig(const JsonRef& root) {
  return {.where = root.where(),
          .bos_token = ParseTokenName(root, "bos_token"),
          .eos_token = ParseTokenName(root, "eos_token"),
          .pad_token = ParseTokenName(root, "pad_token"),
          .unk_token = ParseTokenName(root, "unk_token"),
          .add_bos_token = ParseFlag(root, "add_bos_token"),
          .add_eos_token = ParseFlag(root, "add_eos_token"),
          .added_tokens = ParseAddedTokensDecoder(root)};
}

TokenRoles FindRoles(const TokenizerConfig& config, const StringIds& spellings) {
  return {.bos = FindRole(config, "bos_token", config.bos_token, spellings),
          .eos = FindRole(config, "eos_token", config.eos_token, spellings),
          .pad = FindRole(config, "pad_token", config.pad_token, spellings),
          .unk = FindRole(config, "unk_token", config.unk_token, spellings)};
}

std::optional<TokenFrame> FrameOf(const TokenizerConfig& config, const TokenRoles& roles) {
  if (!config.add_bos_token && !config.add_eos_token) return std::nullopt;
  TokenFrame frame;
  if (config.add_bos_token.value_or(false) && roles.bos) frame.before.push_back(*roles.bos);
  if (config.add_eos_token.value_or(false) && roles.eos) frame.behind.push_back(*roles.eos);
  return frame;
}

}  // namespace quire
