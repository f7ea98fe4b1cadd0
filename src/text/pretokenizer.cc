#include "text/pretokenizer.h"

#include <memory>
#include <optional>
#include <utility>

namespace quire {
namespace {

struct Part {
  TextSpan span;
  bool is_delimiter = false;
};

// All of text[word], match by match.
void FindParts(RegexScan& scan, SplitStep::Cut cut, std::string_view text, const TextSpan& word,
               std::vector<Part>& parts) {
  const bool match_is_delimiter = cut == SplitStep::Cut::kAtMatches;
  parts.clear();
  size_t done = word.begin;
  scan.Start(word.In(text));
  while (const std::optional<TextSpan> match = scan.Next()) {
    const TextSpan span{word.begin + match->begin, word.begin + match->end};
    if (done < span.begin) parts.push_back({{done, span.begin}, !match_is_delimiter});
    parts.push_back({span, match_is_delimiter});
    done = span.end;
  }
  if (done < word.end) parts.push_back({{done, word.end}, !match_is_delimiter});
}

// Is the second part of a word joined to the first, which stands before it?
bool Joins(SplitStep::Behavior behavior, const Part& a, const Part& b) {
  switch (behavior) {
    case SplitStep::Behavior::kContiguous:
      return a.is_delimiter == b.is_delimiter;
    case SplitStep::Behavior::kMergedWithPrevious:
      return !a.is_delimiter && b.is_delimiter;
    case SplitStep::Behavior::kMergedWithNext:
      return a.is_delimiter && !b.is_delimiter;
    case SplitStep::Behavior::kIsolated:
    case SplitStep::Behavior::kRemoved:
      break;
  }
  return false;
}

void AppendWords(const std::vector<Part>& parts, SplitStep::Behavior behavior,
                 std::vector<TextSpan>& words) {
  for (size_t i = 0; i < parts.size();) {
    TextSpan word = parts[i].span;
    const bool is_removed = behavior == SplitStep::Behavior::kRemoved && parts[i].is_delimiter;
    for (++i; i < parts.size() && Joins(behavior, parts[i - 1], parts[i]); ++i) {
      word.end = parts[i].span.end;
    }
    if (word.size() > 0 && !is_removed) words.push_back(word);
  }
}

void Cut(const Regex& pattern, SplitStep::Behavior behavior, SplitStep::Cut cut, Words& words) {
  std::vector<TextSpan> spans;
  spans.reserve(words.spans.size());
  std::vector<Part> parts;
  RegexScan scan(pattern);
  for (const TextSpan& word : words.spans) {
    FindParts(scan, cut, words.text, word, parts);
    AppendWords(parts, behavior, spans);
  }
  words.spans = std::move(spans);
}

// Writes the text anew, word by word. `change` is given a word's index and text.
template <class Change>
void Rewrite(Words& words, Change change) {
  std::string text;
  std::vector<TextSpan> spans;
  for (size_t i = 0; i < words.spans.size(); ++i) {
    const size_t begin = text.size();
    text += change(i, words.spans[i].In(words.text));
    spans.push_back({begin, text.size()});
  }
  words.changed = std::make_unique<const std::string>(std::move(text));
  words.text = *words.changed;
  words.spans = std::move(spans);
}

void Apply(const SplitStep& step, TextPlace, Words& words) {
  Cut(step.pattern, step.behavior, step.cut, words);
}

void Apply(const PrefixSpaceStep&, TextPlace, Words& words) {
  Rewrite(words, [](size_t, std::string_view word) {
    std::string text;
    if (!word.starts_with(' ')) text += ' ';
    text += word;
    return text;
  });
}

void Apply(const MetaspaceStep& step, TextPlace place, Words& words) {
  Rewrite(words, [&](size_t index, std::string_view word) {
    std::string text;
    for (const char byte : word) {
      if (byte == ' ') {
        text += step.replacement;
      } else {
        text += byte;
      }
    }
    const bool is_first = index == 0 && place == TextPlace::kStart;
    const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                          (step.prepend == MetaspaceStep::Prepend::kFirst && is_first);
    if (prepends && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    return text;
  });
  if (step.split) {
    Cut(step.pattern, SplitStep::Behavior::kMergedWithNext, SplitStep::Cut::kAtMatches, words);
  }
}

}  // namespace

Words PreTokenizer::Split(std::string_view text, TextPlace place) const {
  Words words{.text = text};
  if (!text.empty()) words.spans.push_back({0, text.size()});
  for (const Step& step : steps_) {
    std::visit([&](const auto& known) { Apply(known, place, words); }, step);
  }
  return words;
}

}  // namespace quire
