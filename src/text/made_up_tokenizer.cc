#include "text/made_up_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/common_words.h"
#include "text/tokenizer_parts.h"

namespace quire {
namespace {

constexpr int32_t kNumBytes = 256;
constexpr int32_t kNumLetters = 26;

// 0: " a", 25: " z", 26: " aa", and so on.
std::string WordOf(int32_t number) {
  std::string letters;
  for (int32_t rest = number; rest >= 0; rest = rest / kNumLetters - 1) {
    letters += static_cast<char>('a' + rest % kNumLetters);
  }
  std::ranges::reverse(letters);
  return " " + letters;
}

std::vector<BpeToken> MakeUpTokens(size_t vocab_size) {
  std::vector<BpeToken> tokens;
  StringIds known;
  const auto add = [&](std::string text) {
    const auto id = static_cast<int32_t>(tokens.size());
    if (known.Insert(text, id)) tokens.push_back({.text = std::move(text), .id = id});
  };
  for (int byte = 0; byte < kNumBytes; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string_view word : CommonWords()) add(fmt::format(" {}", word));
  for (int32_t number = 0; tokens.size() < vocab_size; ++number) add(WordOf(number));
  tokens.resize(vocab_size);
  return tokens;
}

PreTokenizer CutsWords() {
  std::vector<PreTokenizer::Step> steps;
  steps.emplace_back(SplitStep{.pattern = Regex(" [a-z]+", "made-up tokenizer")});
  return PreTokenizer(std::move(steps));
}

}  // namespace

std::unique_ptr<const Tokenizer> MakeUpTokenizer(int64_t vocab_size) {
  Require(vocab_size >= kNumBytes && vocab_size <= kMaxVocabSize,
          "vocab_size: expected {}..{}, so that tokens can be made up, got {}", kNumBytes,
          kMaxVocabSize, vocab_size);
  std::vector<BpeToken> tokens = MakeUpTokens(static_cast<size_t>(vocab_size));
  std::vector<SpelledToken> spelled;
  StringIds spellings;
  for (const BpeToken& token : tokens) {
    spelled.push_back({.id = token.id, .spelling = SpellBytes(token.text)});
    spellings.Insert(spelled.back().spelling, token.id);
  }
  return std::make_unique<const Tokenizer>(TokenizerParts{
      .added_tokens = AddedTokens({}, {}),
      .pre_tokenizer = CutsWords(),
      .bpe = Bpe(
          {.unit = BpeSpec::Unit::kByte, .tokens = std::move(tokens), .whole_words_first = true}),
      .decoder = TokenDecoder(spelled, {.joining = DecodeRules::Joining::kBytes}),
      .spellings = std::move(spellings)});
}

}  // namespace quire
