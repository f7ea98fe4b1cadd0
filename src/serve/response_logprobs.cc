#include "serve/response_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace quire {
namespace {

bool IsKnown(const Tokenizer& tokenizer, int32_t token) {
  return !tokenizer.TokenSpelling(token).empty();
}

std::string UnknownName(int32_t token) { return fmt::format("token_id:{}", token); }

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

OrderedJson ChatEntry(const Tokenizer& tokenizer, const TokenLogprob& token) {
  OrderedJson entry = OrderedJson::object();
  if (!IsKnown(tokenizer, token.token)) {
    entry["token"] = UnknownName(token.token);
    entry["logprob"] = FiniteLogprob(token.logprob);
    entry["bytes"] = nullptr;
    return entry;
  }
  const std::string_view bytes = tokenizer.TokenBytes(token.token);
  OrderedJson list = OrderedJson::array();
  for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
  entry["token"] = ReplaceIllFormed(bytes);
  entry["logprob"] = FiniteLogprob(token.logprob);
  entry["bytes"] = std::move(list);
  return entry;
}

}  // namespace

double FiniteLogprob(float logprob) { return logprob > -9999.0f ? logprob : -9999.0; }

OrderedJson ChatTokenJson(const Tokenizer& tokenizer, const TokenScore& score) {
  OrderedJson entry = ChatEntry(tokenizer, score.chosen);
  OrderedJson top = OrderedJson::array();
  for (const TokenLogprob& token : score.top) top.push_back(ChatEntry(tokenizer, token));
  entry["top_logprobs"] = std::move(top);
  return entry;
}

std::string CompletionTokenName(const Tokenizer& tokenizer, int32_t token) {
  if (!IsKnown(tokenizer, token)) return UnknownName(token);
  const std::string_view bytes = tokenizer.TokenBytes(token);
  if (IsUtf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return name;
}

int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return !IsContinuation(byte); });
}

std::vector<int64_t> PromptOffsets(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const int32_t> tokens) {
  std::vector<int64_t> offsets;
  offsets.reserve(tokens.size());
  int64_t begun = 0;  // characters that begin before `text`, which gets shorter
  for (const int32_t token : tokens) {
    offsets.push_back(begun - (!text.empty() && IsContinuation(text.front()) ? 1 : 0));
    std::string_view bytes = tokenizer.TokenBytes(token);
    // A tokenizer may put a space before the first word.
    const bool has_space = offsets.size() == 1 && bytes.starts_with(' ') && !text.starts_with(' ');
    if (has_space) bytes.remove_prefix(1);
    if (!text.starts_with(bytes) && tokenizer.IsSpecial(token)) continue;
    const std::string_view taken = text.substr(0, bytes.size());
    begun += CountCharacters(taken);
    text.remove_prefix(taken.size());
  }
  return offsets;
}

AnswerOffsets::AnswerOffsets(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                             int64_t start, bool skip_special_tokens)
    : tokenizer_(&tokenizer), characters_(start), skip_special_tokens_(skip_special_tokens) {
  begins_text_ = std::ranges::all_of(prompt, [&](int32_t token) {
    return !IsKnown(tokenizer, token) || (skip_special_tokens && tokenizer.IsSpecial(token));
  });
}

int64_t AnswerOffsets::Next(int32_t token) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(token)) return characters_;
  std::string_view bytes = tokenizer_->TokenBytes(token);
  std::string first;  // as it stands at the beginning of a text, where spaces may go
  if (std::exchange(begins_text_, false) && bytes.starts_with(' ')) {
    first = tokenizer_->Decode(std::span(&token, 1));
    bytes = first;
  }
  const bool inside = !bytes.empty() && IsContinuation(bytes.front()) && characters_ > 0;
  const int64_t offset = characters_ - (inside ? 1 : 0);
  characters_ += CountCharacters(bytes);
  return offset;
}

CompletionEntry CompletionTokenEntry(const Tokenizer& tokenizer, const ScoredToken& token) {
  CompletionEntry entry{.token = CompletionTokenName(tokenizer, token.score.chosen.token),
                        .offset = token.offset};
  if (!token.is_scored) return entry;
  entry.logprob = FiniteLogprob(token.score.chosen.logprob);
  entry.top = OrderedJson::object();
  // emplace keeps the first of a name: the most likely.
  for (const TokenLogprob& other : token.score.top) {
    entry.top.emplace(CompletionTokenName(tokenizer, other.token), FiniteLogprob(other.logprob));
  }
  entry.top.emplace(entry.token, FiniteLogprob(token.score.chosen.logprob));
  return entry;
}

OrderedJson ChatLogprobsJson(const Tokenizer& tokenizer, std::span<const ScoredToken> tokens) {
  if (tokens.empty()) return nullptr;
  OrderedJson content = OrderedJson::array();
  for (const ScoredToken& token : tokens) content.push_back(ChatTokenJson(tokenizer, token.score));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson CompletionLogprobsJson(const Tokenizer& tokenizer,
                                   std::span<const ScoredToken> tokens) {
  if (tokens.empty()) return nullptr;
  OrderedJson lists = {{"tokens", OrderedJson::array()},
                       {"token_logprobs", OrderedJson::array()},
                       {"top_logprobs", OrderedJson::array()},
                       {"text_offset", OrderedJson::array()}};
  for (const ScoredToken& token : tokens) {
    CompletionEntry entry = CompletionTokenEntry(tokenizer, token);
    lists["tokens"].push_back(std::move(entry.token));
    lists["token_logprobs"].push_back(std::move(entry.logprob));
    lists["top_logprobs"].push_back(std::move(entry.top));
    lists["text_offset"].push_back(entry.offset);
  }
  return lists;
}

}  // namespace quire
