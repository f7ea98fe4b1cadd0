#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

// One character of a word, by Unicode's definition of \w (UTS 18), which the tokenizers library uses
// here: Alphabetic, and marks, digits, connectors and joiners. The ranges are letters in circles and
// squares, which are Alphabetic without being letters.
constexpr std::string_view kWordCharacter =
    R"([\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})"
    R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])";

bool Matches(const Regex& regex, std::string_view text) {
  RegexScan scan(regex);
  scan.Start(text);
  return scan.Next().has_value();
}

size_t PreviousCharacter(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

// Where the white space that ends at `end` begins.
size_t SkipSpaceBackward(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t previous = PreviousCharacter(text, end);
    if (!IsWhiteSpace(ReadUtf8(text.substr(previous)).character)) return end;
    end = previous;
  }
  return end;
}

size_t SkipSpaceForward(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = ReadUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.character)) return begin;
    begin += step.length;
  }
  return begin;
}

}  // namespace

int32_t TokenTrie::Child(int32_t node, char byte) const {
  const auto& children = nodes_[node].children;
  const auto at = std::lower_bound(children.begin(), children.end(), std::pair(byte, int32_t{0}));
  return at != children.end() && at->first == byte ? at->second : -1;
}

void TokenTrie::Insert(std::string_view string, int32_t value) {
  QUIRE_CHECK(!string.empty());
  begins_[static_cast<uint8_t>(string[0])] = true;
  int32_t node = 0;
  for (const char byte : string) {
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      const std::pair entry(byte, child);
      children.insert(std::lower_bound(children.begin(), children.end(), entry), entry);
    }
    node = child;
  }
  QUIRE_CHECK(nodes_[node].value < 0);
  nodes_[node].value = value;
}

std::optional<TokenTrie::Found> TokenTrie::LongestAt(std::string_view text, size_t at) const {
  std::optional<Found> longest;
  int32_t node = 0;
  for (size_t end = at; end < text.size(); ++end) {
    node = Child(node, text[end]);
    if (node < 0) break;
    if (nodes_[node].value >= 0) longest = {{at, end + 1}, nodes_[node].value};
  }
  return longest;
}

std::optional<TokenTrie::Found> TokenTrie::Find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<uint8_t>(text[at])]) continue;
    if (const std::optional<Found> found = LongestAt(text, at)) return found;
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens,
                         std::span<const std::string> normalized_contents)
    : tokens_(std::move(tokens)) {
  QUIRE_CHECK(normalized_contents.size() == tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    const auto index = static_cast<int32_t>(i);
    if (token.normalized) {
      if (!normalized_contents[i].empty()) normalized_.Insert(normalized_contents[i], index);
    } else {
      raw_.Insert(token.content, index);
    }
    if (token.single_word && !word_at_start_) {
      word_at_start_.emplace(fmt::format(R"(\A{})", kWordCharacter), "a character of a word");
      word_at_end_.emplace(fmt::format(R"({}\z)", kWordCharacter), "a character of a word");
    }
  }
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto at = std::lower_bound(tokens_.begin(), tokens_.end(), id,
                                   [](const AddedToken& token, int32_t i) { return token.id < i; });
  return at != tokens_.end() && at->id == id ? &*at : nullptr;
}

bool AddedTokens::Counts(const AddedToken& token, std::string_view text, const TextSpan& span,
                         SpecialTokens special) const {
  if (token.control && special == SpecialTokens::kLeaveAsText) return false;
  if (!token.single_word) return true;
  const size_t previous = span.begin > 0 ? PreviousCharacter(text, span.begin) : 0;
  return !Matches(*word_at_end_, text.substr(previous, span.begin - previous)) &&
         !Matches(*word_at_start_, text.substr(span.end, 4));
}

std::vector<TextPart> AddedTokens::Split(const TokenTrie& trie, std::string_view text,
                                         SpecialTokens special) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  for (size_t from = 0; const auto found = trie.Find(text, from);) {
    TextSpan span = found->span;
    from = span.end;
    const AddedToken& token = tokens_[found->value];
    if (!Counts(token, text, span, special)) continue;
    // A token that was found earlier may have taken the space, and with it the beginning of this one.
    if (token.lstrip) span.begin = std::max(SkipSpaceBackward(text, span.begin), done);
    if (token.rstrip) span.end = SkipSpaceForward(text, span.end);
    if (done < span.begin) parts.push_back({{done, span.begin}});
    parts.push_back({span, token.id});
    done = span.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}});
  return parts;
}

}  // namespace quire
