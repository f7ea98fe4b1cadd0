#include "text/grammar/vocabulary_trie.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace quire {
namespace {

constexpr char kMarkByte = '\xff';

}  // namespace

VocabularyTrie::VocabularyTrie(std::span<const std::string_view> tokens)
    : bytes_(tokens.begin(), tokens.end()) {
  std::vector<int32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return Bytes(id).empty(); });
  std::ranges::stable_sort(order, {}, [&](int32_t id) { return Bytes(id); });

  nodes_.push_back({});
  std::vector<int32_t> path = {0};  // nodes from the root
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[static_cast<size_t>(path.back())].end = static_cast<int32_t>(nodes_.size());
    }
  };
  std::string_view last;
  for (const int32_t id : order) {
    const std::string_view bytes = Bytes(id);
    Require(bytes.size() <= std::numeric_limits<uint16_t>::max(),
            "token {}: expected at most {} bytes, got {}", id, std::numeric_limits<uint16_t>::max(),
            bytes.size());
    const auto same = static_cast<size_t>(std::ranges::mismatch(last, bytes).in1 - last.begin());
    close(same);
    for (size_t i = same; i < bytes.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.first_token = static_cast<int32_t>(tokens_.size()),
                        .depth = static_cast<uint16_t>(i + 1),
                        .byte = static_cast<uint8_t>(bytes[i])});
    }
    tokens_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(bytes.size()));
    last = bytes;
  }
  close(0);
  nodes_[0].end = static_cast<int32_t>(nodes_.size());
  nodes_.push_back({.first_token = static_cast<int32_t>(tokens_.size())});
}

std::string_view VocabularyTrie::Bytes(int32_t token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return bytes_[static_cast<size_t>(token)];
}

VocabularyTrie MakeVocabularyTrie(const Tokenizer& tokenizer, int64_t vocab_size,
                                  std::span<const std::string> marks) {
  std::vector<std::string_view> tokens(static_cast<size_t>(vocab_size));
  const int64_t known = std::min<int64_t>(vocab_size, tokenizer.vocab_size());
  for (int32_t id = 0; id < known; ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    // A token of that byte alone would write a mark's first.
    const bool may_mark = !marks.empty() && bytes.find(kMarkByte) != std::string_view::npos;
    if (!tokenizer.IsSpecial(id) && !may_mark) tokens[static_cast<size_t>(id)] = bytes;
  }
  std::vector<std::string> marked;
  marked.reserve(marks.size());  // so that growing moves nothing that is pointed to
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.id >= known || std::ranges::find(marks, token.content) == marks.end()) continue;
    tokens[static_cast<size_t>(token.id)] = marked.emplace_back(MarkedText(token.content));
  }
  return VocabularyTrie(tokens);
}

std::string MarkedText(std::string_view mark) { return kMarkByte + std::string(mark); }

}  // namespace quire
