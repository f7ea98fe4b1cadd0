#include "text/tokenizer_json.h"

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_steps_json.h"

namespace quire {
namespace {

// The tokens of model.vocab, before they are anything else.
struct Vocabulary {
  StringIds ids = {};
  std::vector<SpelledToken> tokens = {};
};

Vocabulary ParseVocabulary(const JsonRef& vocab) {
  Vocabulary vocabulary;
  std::vector<bool> has_id;
  if (!vocab.value().is_object()) (void)vocab.Members();  // throws
  for (const auto& [spelling, value] : vocab.value().items()) {
    // A JsonRef per token would take longer than the rest.
    const bool is_id = value.is_number_unsigned() && value.get<uint64_t>() < kMaxVocabSize;
    const auto id = is_id ? value.get<int32_t>()
                          : static_cast<int32_t>(vocab.At(spelling).Int(0, kMaxVocabSize - 1));
    if (std::cmp_greater_equal(id, has_id.size())) has_id.resize(id + 1);
    Require(!has_id[id], "{}: expected every id once, got {} again", vocab.At(spelling).where(),
            id);
    has_id[id] = true;
    vocabulary.ids.Insert(spelling, id);
    vocabulary.tokens.push_back({.id = id, .spelling = spelling});
  }
  return vocabulary;
}

struct SpelledMerge {
  std::string left;
  std::string right;
};

// "a b" or ["a", "b"]
SpelledMerge ParseSpelledMerge(const Json& merge, const JsonRef& merges, size_t index) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  throw Error(ErrorCode::kInvalidArgument,
              "{}[{}]: expected two tokens, \"a b\" or [\"a\", \"b\"], got {}", merges.where(),
              index, QuoteForMessage(merge.dump()));
}

std::vector<BpeMerge> ParseMerges(const JsonRef& merges, const Vocabulary& vocabulary) {
  std::vector<BpeMerge> parsed;
  if (!merges.value().is_array()) (void)merges.Array();  // throws
  for (size_t i = 0; i < merges.value().size(); ++i) {
    const SpelledMerge merge = ParseSpelledMerge(merges.value()[i], merges, i);
    const auto id = [&](const std::string& token) {
      const std::optional<int32_t> found = vocabulary.ids.Find(token);
      Require(found.has_value(), "{}[{}]: expected tokens of the vocabulary, got {}",
              merges.where(), i, QuoteForMessage(token));
      return *found;
    };
    parsed.push_back(
        {.left = id(merge.left),
         .right = id(merge.right),
         .merge = {.rank = static_cast<int32_t>(i), .result = id(merge.left + merge.right)}});
  }
  return parsed;
}

// What is absent, null or empty in every model we know.
void RequireEmpty(const JsonRef& model, std::string_view key) {
  const std::optional<JsonRef> value = model.Find(key);
  Require(!value || value->String().empty(), "{}.{}: expected null or \"\", got {}", model.where(),
          key, value ? QuoteForMessage(value->String()) : "");
}

bool Flag(const JsonRef& model, std::string_view key) {
  const std::optional<JsonRef> value = model.Find(key);
  return value && value->Bool();
}

std::array<std::optional<int32_t>, 256> FindByteTokens(const Vocabulary& vocabulary) {
  std::array<std::optional<int32_t>, 256> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens[byte] = vocabulary.ids.Find(SpellByteToken(static_cast<uint8_t>(byte)));
  }
  return tokens;
}

std::optional<int32_t> FindUnknown(const JsonRef& model, const Vocabulary& vocabulary) {
  const std::optional<JsonRef> token = model.Find("unk_token");
  if (!token) return std::nullopt;
  const std::optional<int32_t> id = vocabulary.ids.Find(token->String());
  Require(id.has_value(), "{}: expected null or a token of the vocabulary, got {}", token->where(),
          QuoteForMessage(token->String()));
  return id;
}

// The tokens that merging can reach: in a byte-level vocabulary, those that spell bytes.
std::vector<BpeToken> TokensInUnits(const Vocabulary& vocabulary, BpeSpec::Unit unit) {
  std::vector<BpeToken> tokens;
  for (const SpelledToken& token : vocabulary.tokens) {
    if (unit == BpeSpec::Unit::kCharacter) {
      tokens.push_back({token.spelling, token.id});
    } else if (std::optional<std::string> bytes = ReadSpelledBytes(token.spelling)) {
      tokens.push_back({std::move(*bytes), token.id});
    }
  }
  return tokens;
}

Bpe ParseBpe(const JsonRef& model, const Vocabulary& vocabulary, BpeSpec::Unit unit) {
  RequireKnownKeys(
      model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
              "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  Require(!model.Find("dropout"), "{}.dropout: expected null, got {}", model.where(),
          model.Find("dropout") ? model.Find("dropout")->value().dump() : "");
  RequireEmpty(model, "continuing_subword_prefix");
  RequireEmpty(model, "end_of_word_suffix");
  const bool byte_fallback = Flag(model, "byte_fallback");
  Require(!byte_fallback || unit == BpeSpec::Unit::kCharacter,
          "{}.byte_fallback: expected false with a ByteLevel pre_tokenizer, got true",
          model.where());
  BpeSpec spec{.unit = unit,
               .tokens = TokensInUnits(vocabulary, unit),
               .merges = ParseMerges(model.At("merges"), vocabulary),
               .whole_words_first = Flag(model, "ignore_merges"),
               .unknown = FindUnknown(model, vocabulary),
               .fuse_unknown = Flag(model, "fuse_unk")};
  if (byte_fallback) spec.byte_tokens = FindByteTokens(vocabulary);
  return Bpe(spec);
}

// Added tokens, each id and each content once.
class AddedTokenList {
 public:
  explicit AddedTokenList(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Of the same id and content, the last one counts.
  void Add(const AddedToken& token, const std::string& where) {
    const std::optional<int32_t> in_vocab = vocabulary_.ids.Find(token.content);
    Require(!in_vocab || *in_vocab == token.id, "{}: expected id {}, as in model.vocab, got {}",
            where, in_vocab.value_or(0), token.id);
    const std::optional<int32_t> id_of_content = ids_.Find(token.content);
    const auto known = tokens_.find(token.id);
    Require(id_of_content ? *id_of_content == token.id : known == tokens_.end(),
            "{}: expected one id for one content, got {} and {} again", where, token.id,
            QuoteForMessage(token.content));
    ids_.Insert(token.content, token.id);
    tokens_[token.id] = token;
  }

  std::vector<AddedToken> ById() const {
    std::vector<AddedToken> tokens;
    for (const auto& [id, token] : tokens_) tokens.push_back(token);
    return tokens;
  }

 private:
  const Vocabulary& vocabulary_;
  StringIds ids_ = {};  // by content
  std::map<int32_t, AddedToken> tokens_ = {};
};

// Of the file, and then of the config: there a token may be new, or have other flags.
std::vector<AddedToken> ParseAddedTokens(const std::optional<JsonRef>& list,
                                         const TokenizerConfig& config,
                                         const Vocabulary& vocabulary) {
  AddedTokenList tokens(vocabulary);
  for (const JsonRef& ref : list ? list->Array() : std::vector<JsonRef>()) {
    RequireKnownKeys(ref,
                     {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = ParseAddedToken(ref);
    token.id = static_cast<int32_t>(ref.At("id").Int(0, kMaxVocabSize - 1));
    tokens.Add(token, ref.where());
  }
  for (const AddedToken& token : config.added_tokens) {
    tokens.Add(token, fmt::format("{}: added_tokens_decoder.{}", config.where, token.id));
  }
  return tokens.ById();
}

std::vector<std::string> NormalizeContents(const std::vector<AddedToken>& tokens,
                                           const Normalizer& normalizer, const JsonRef& root) {
  std::vector<std::string> contents;
  StringIds known;
  for (const AddedToken& token : tokens) {
    contents.push_back(normalizer.Normalize(token.content));
    Require(!token.normalized || known.Insert(contents.back(), token.id),
            "{}: added_tokens: expected tokens that differ when normalized, got {} again",
            root.where(), QuoteForMessage(contents.back()));
  }
  return contents;
}

// Those of the vocabulary and the added ones, each once.
std::vector<SpelledToken> AllTokens(const Vocabulary& vocabulary,
                                    const std::vector<AddedToken>& added,
                                    const std::vector<std::string>& normalized,
                                    const JsonRef& root) {
  std::map<int32_t, SpelledToken> tokens;
  for (const SpelledToken& token : vocabulary.tokens) tokens.emplace(token.id, token);
  for (size_t i = 0; i < added.size(); ++i) {
    SpelledToken token{
        .id = added[i].id, .spelling = added[i].content, .special = added[i].special};
    if (added[i].normalized) token.decoded_spelling = normalized[i];
    const auto [known, is_new] = tokens.try_emplace(token.id, token);
    Require(is_new || known->second.spelling == token.spelling,
            "{}: added_tokens: expected {} for id {}, as in model.vocab, got {}", root.where(),
            QuoteForMessage(known->second.spelling), token.id, QuoteForMessage(token.spelling));
    known->second = std::move(token);
  }
  std::vector<SpelledToken> by_id;
  for (auto& [id, token] : tokens) by_id.push_back(std::move(token));
  return by_id;
}

// Memory goes with the highest id.
void RequireDenseIds(const std::vector<SpelledToken>& tokens, const JsonRef& root) {
  const size_t limit = 4 * tokens.size() + 65536;
  for (const SpelledToken& token : tokens) {
    Require(std::cmp_less(token.id, limit),
            "{}: expected ids below {} with {} tokens, got {} for {}", root.where(), limit,
            tokens.size(), token.id, QuoteForMessage(token.spelling));
  }
}

StringIds IndexSpellings(const std::vector<SpelledToken>& tokens) {
  StringIds ids;
  for (const SpelledToken& token : tokens) ids.Insert(token.spelling, token.id);
  return ids;
}

}  // namespace

TokenizerParts ParseTokenizerJson(const JsonRef& root, const TokenizerConfig& config) {
  // truncation and padding are left to whoever calls, as in the transformers library.
  RequireKnownKeys(root, {"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"});
  root.At("version").OneOf({"1.0"});
  const JsonRef model = root.At("model");
  if (const std::optional<JsonRef> type = model.Find("type")) type->OneOf({"BPE"});

  const Vocabulary vocabulary = ParseVocabulary(model.At("vocab"));
  Normalizer normalizer = ParseNormalizer(root.Find("normalizer"));
  ParsedPreTokenizer words = ParsePreTokenizer(root.Find("pre_tokenizer"));
  std::vector<AddedToken> added = ParseAddedTokens(root.Find("added_tokens"), config, vocabulary);
  const std::vector<std::string> normalized = NormalizeContents(added, normalizer, root);
  const std::vector<SpelledToken> tokens = AllTokens(vocabulary, added, normalized, root);
  RequireDenseIds(tokens, root);
  StringIds spellings = IndexSpellings(tokens);
  const TokenRoles roles = FindRoles(config, spellings);
  const TokenFrame frame = ParsePostProcessor(root.Find("post_processor"));
  return {.added_tokens = AddedTokens(std::move(added), normalized),
          .normalizer = std::move(normalizer),
          .pre_tokenizer = std::move(words.pre_tokenizer),
          .bpe = ParseBpe(model, vocabulary, words.unit),
          .decoder = TokenDecoder(tokens, ParseDecoder(root.At("decoder"))),
          .spellings = std::move(spellings),
          .frame = FrameOf(config, roles).value_or(frame),
          .roles = roles};
}

TokenizerParts ReadTokenizerJson(const std::filesystem::path& folder) {
  TokenizerConfig config;
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  if (std::filesystem::exists(config_path)) {
    const Json json = ReadJsonFile(config_path);
    config = ParseTokenizerConfig(JsonRef(json, config_path.string()));
  }
  const std::filesystem::path path = folder / "tokenizer.json";
  const Json json = ReadJsonFile(path);
  return ParseTokenizerJson(JsonRef(json, path.string()), config);
}

}  // namespace quire
