#include "text/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "text/byte_alphabet.h"

namespace quire {
namespace {

// How Kimi-K2 and Moonlight find words, as the program that comes with their weights spells it: a run
// of Han; letters that end in small ones, with a sign before and an English ending behind, without
// Han; the same with capitals; up to three digits; signs; line ends; space that stands before
// nothing, and other space.
constexpr std::string_view kWordPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+)"
    R"(|\s+(?!\S))"
    R"(|\s+)";

// Also theirs.
constexpr RunLimits kRunLimits = {.max_text = 400'000, .max_run = 25'000};
constexpr int32_t kNumSpecialTokens = 256;

// Every way to cut a token in two is a merge, so that the time to read one goes with its square.
constexpr size_t kMaxTokenBytes = 1024;

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Null if it is not base64, padded to four.
std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const size_t value = kBase64.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xff);
  }
  return bytes;
}

// "IQ== 0"
BpeToken ParseLine(std::string_view line, std::string_view where) {
  const size_t space = line.find(' ');
  const std::string_view id_text = space < line.size() ? line.substr(space + 1) : "";
  const std::optional<std::string> bytes = DecodeBase64(line.substr(0, space));
  int32_t id = -1;
  const char* const id_end = id_text.data() + id_text.size();
  const auto [end, error] = std::from_chars(id_text.data(), id_end, id);
  Require(bytes && !bytes->empty() && !id_text.empty() && error == std::errc() && end == id_end &&
              id >= 0 && id < kMaxVocabSize,
          "{}: expected a token in base64, a space and an id below {}, got {}", where,
          kMaxVocabSize, QuoteForMessage(line));
  Require(bytes->size() <= kMaxTokenBytes, "{}: expected a token of at most {} bytes, got {}",
          where, kMaxTokenBytes, bytes->size());
  return {.text = *bytes, .id = id};
}

std::vector<BpeToken> ParseRanks(std::string_view ranks, std::string_view source) {
  std::vector<BpeToken> tokens;
  StringIds known;
  std::vector<bool> has_id;
  for (int64_t line_number = 1; !ranks.empty(); ++line_number) {
    const size_t length = std::min(ranks.find('\n'), ranks.size());
    std::string_view line = ranks.substr(0, length);
    ranks.remove_prefix(std::min(length + 1, ranks.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", source, line_number);
    BpeToken token = ParseLine(line, where);
    if (std::cmp_greater_equal(token.id, has_id.size())) has_id.resize(token.id + 1);
    Require(known.Insert(token.text, token.id) && !has_id[token.id],
            "{}: expected a new token with a new id, got {}", where, QuoteForMessage(line));
    has_id[token.id] = true;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void RequireEveryByte(const std::vector<BpeToken>& tokens, std::string_view source) {
  std::array<bool, 256> found = {};
  for (const BpeToken& token : tokens) {
    if (token.text.size() == 1) found[static_cast<uint8_t>(token.text[0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    Require(found[byte], "{}: expected a token for every byte, got none for 0x{:02x}", source,
            byte);
  }
}

std::vector<BpeMerge> MergesInto(const std::vector<BpeToken>& tokens) {
  StringIds ids;
  for (const BpeToken& token : tokens) ids.Insert(token.text, token.id);
  std::vector<BpeMerge> merges;
  for (const BpeToken& token : tokens) {
    const std::string_view text = token.text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const std::optional<int32_t> left = ids.Find(text.substr(0, cut));
      const std::optional<int32_t> right = left ? ids.Find(text.substr(cut)) : std::nullopt;
      if (right) merges.push_back({*left, *right, {.rank = token.id, .result = token.id}});
    }
  }
  return merges;
}

// The tokens behind the ones of the file: those that the config names, and the rest of 256.
std::vector<AddedToken> SpecialTokensBehind(int32_t first, const TokenizerConfig& config) {
  std::vector<AddedToken> tokens;
  for (int32_t id = first; id < first + kNumSpecialTokens; ++id) {
    tokens.push_back({.id = id, .content = fmt::format("<|reserved_token_{}|>", id)});
  }
  for (const AddedToken& named : config.added_tokens) {
    Require(named.id >= first && named.id < first + kNumSpecialTokens,
            "{}: added_tokens_decoder: expected ids of at least {} and below {}, got {}",
            config.where, first, first + kNumSpecialTokens, named.id);
    AddedToken& token = tokens[named.id - first];
    token.content = named.content;
    token.special = named.special;
  }
  for (AddedToken& token : tokens) token.control = true;
  return tokens;
}

std::vector<SpelledToken> Spell(const std::vector<BpeToken>& tokens,
                                const std::vector<AddedToken>& added) {
  std::vector<SpelledToken> spelled;
  for (const BpeToken& token : tokens) {
    spelled.push_back({.id = token.id, .spelling = SpellBytes(token.text)});
  }
  for (const AddedToken& token : added) {
    spelled.push_back({.id = token.id, .spelling = token.content, .special = token.special});
  }
  return spelled;
}

StringIds IndexSpellings(const std::vector<SpelledToken>& tokens, const TokenizerConfig& config) {
  StringIds ids;
  for (const SpelledToken& token : tokens) {
    Require(ids.Insert(token.spelling, token.id),
            "{}: added_tokens_decoder.{}: expected a new token, got {} again", config.where,
            token.id, QuoteForMessage(token.spelling));
  }
  return ids;
}

PreTokenizer MakePreTokenizer() {
  std::vector<PreTokenizer::Step> steps;
  steps.emplace_back(SplitStep{.pattern = Regex(kWordPattern, "tiktoken.model")});
  return PreTokenizer(std::move(steps));
}

}  // namespace

TokenizerParts ParseTiktoken(std::string_view ranks, std::string_view source,
                             const TokenizerConfig& config) {
  std::vector<BpeToken> tokens = ParseRanks(ranks, source);
  RequireEveryByte(tokens, source);
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  for (const BpeToken& token : tokens) {
    Require(token.id < num_tokens, "{}: expected ids below the number of tokens, {}, got {}",
            source, num_tokens, token.id);
  }
  std::vector<BpeMerge> merges = MergesInto(tokens);
  const std::vector<AddedToken> added = SpecialTokensBehind(num_tokens, config);
  const std::vector<SpelledToken> spelled = Spell(tokens, added);
  StringIds spellings = IndexSpellings(spelled, config);
  const TokenRoles roles = FindRoles(config, spellings);
  return {.run_limits = kRunLimits,
          .added_tokens = AddedTokens(added, std::vector<std::string>(added.size())),
          .pre_tokenizer = MakePreTokenizer(),
          .bpe = Bpe({.unit = BpeSpec::Unit::kByte,
                      .tokens = std::move(tokens),
                      .merges = std::move(merges),
                      .whole_words_first = true}),
          .decoder = TokenDecoder(spelled, {.joining = DecodeRules::Joining::kBytes}),
          .spellings = std::move(spellings),
          .frame = FrameOf(config, roles).value_or(TokenFrame{}),
          .roles = roles};
}

TokenizerParts ReadTiktoken(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const Json config_json = ReadJsonFile(config_path);
  const TokenizerConfig config = ParseTokenizerConfig(JsonRef(config_json, config_path.string()));
  const MappedFile ranks(folder / "tiktoken.model");
  const auto* const text = reinterpret_cast<const char*>(ranks.bytes().data());
  return ParseTiktoken({text, ranks.bytes().size()}, ranks.path().string(), config);
}

}  // namespace quire
