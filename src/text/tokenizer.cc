#include "text/tokenizer.h"

#include <system_error>
#include <utility>

#include "base/error.h"
#include "text/tiktoken.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr const char* kJsonFile = "tokenizer.json";
constexpr const char* kTiktokenFile = "tiktoken.model";

bool HasFile(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  return std::filesystem::exists(folder / name, ignored);
}

// One text on its way to ids.
class Encoding {
 public:
  Encoding(const TokenizerParts& parts, const EncodeOptions& options)
      : parts_(parts),
        options_(options),
        special_(options.parse_special_tokens ? SpecialTokens::kParse
                                              : SpecialTokens::kLeaveAsText),
        scratch_{.stop = options.stop} {}

  std::vector<int32_t> Run(std::string_view text) {
    if (options_.add_special_tokens) Append(parts_.frame.before);
    if (parts_.run_limits) {
      for (const std::string_view piece : CutLongRuns(text, *parts_.run_limits)) AddText(piece);
    } else {
      AddText(text);
    }
    if (options_.add_special_tokens) Append(parts_.frame.behind);
    return std::move(ids_);
  }

 private:
  void Append(const std::vector<int32_t>& ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }

  void AddText(std::string_view text) {
    for (const TextPart& part : parts_.added_tokens.SplitRaw(text, special_)) {
      const TextPlace place = part.span.begin == 0 ? TextPlace::kStart : TextPlace::kLater;
      if (part.token) {
        ids_.push_back(*part.token);
        Check();
      } else if (parts_.normalizer.IsIdentity()) {
        AddNormalized(part.span.In(text), place);
      } else {
        AddNormalized(parts_.normalizer.Normalize(part.span.In(text)), place);
      }
    }
  }

  void AddNormalized(std::string_view text, TextPlace place) {
    for (const TextPart& part : parts_.added_tokens.SplitNormalized(text, special_)) {
      if (part.token) {
        ids_.push_back(*part.token);
        Check();
      } else {
        AddWords(part.span.In(text), part.span.begin == 0 ? place : TextPlace::kLater);
      }
    }
  }

  void AddWords(std::string_view text, TextPlace place) {
    parts_.pre_tokenizer.ForEachWord(text, place, [this](std::string_view word) {
      parts_.bpe.Encode(word, scratch_, ids_);
      Check();
    });
  }

  void Check() const {
    CheckNotStopped(options_.stop);
    if (ids_.size() > options_.max_tokens) {
      throw Error(ErrorCode::kCapacityExceeded, "the text has more than {} tokens",
                  options_.max_tokens);
    }
  }

  const TokenizerParts& parts_;
  const EncodeOptions& options_;
  SpecialTokens special_;
  Bpe::Scratch scratch_;
  std::vector<int32_t> ids_ = {};
};

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_unique<const TokenizerParts>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (!IsUtf8(text)) return Encoding(*parts_, options).Run(ReplaceIllFormed(text));
  return Encoding(*parts_, options).Run(text);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  TokenDecoder::Stream stream(parts_->decoder, options);
  std::string text;
  for (const int32_t id : ids) text += stream.Put(id);
  return text + stream.Flush();
}

int32_t Tokenizer::vocab_size() const { return parts_->decoder.vocab_size(); }

std::string_view Tokenizer::TokenBytes(int32_t id) const { return parts_->decoder.Bytes(id); }

std::optional<int32_t> Tokenizer::FindToken(std::string_view token) const {
  return parts_->spellings.Find(token);
}

std::string_view Tokenizer::TokenSpelling(int32_t id) const { return parts_->decoder.Spelling(id); }

std::span<const AddedToken> Tokenizer::added_tokens() const {
  return parts_->added_tokens.tokens();
}

bool Tokenizer::IsSpecial(int32_t id) const { return parts_->decoder.IsSpecial(id); }

std::optional<int32_t> Tokenizer::bos() const { return parts_->roles.bos; }
std::optional<int32_t> Tokenizer::eos() const { return parts_->roles.eos; }
std::optional<int32_t> Tokenizer::pad() const { return parts_->roles.pad; }
std::optional<int32_t> Tokenizer::unk() const { return parts_->roles.unk; }

const TokenDecoder& Tokenizer::decoder() const { return parts_->decoder; }

bool HasTokenizer(const std::filesystem::path& folder) {
  return HasFile(folder, kJsonFile) || HasFile(folder, kTiktokenFile);
}

std::unique_ptr<const Tokenizer> OpenTokenizer(const std::filesystem::path& folder) {
  if (HasFile(folder, kJsonFile)) {
    return std::make_unique<const Tokenizer>(ReadTokenizerJson(folder));
  }
  if (HasFile(folder, kTiktokenFile)) {
    return std::make_unique<const Tokenizer>(ReadTiktoken(folder));
  }
  throw Error(ErrorCode::kInvalidArgument, "{}: expected {} or {}, found neither", folder.string(),
              kJsonFile, kTiktokenFile);
}

}  // namespace quire
