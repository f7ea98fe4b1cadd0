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

// One text on its way through the steps. What a step makes of a word is given to the next step before
// the rest of the word is looked at.
class Splitting {
 public:
  Splitting(const std::vector<PreTokenizer::Step>& steps, TextPlace place,
            const std::function<void(std::string_view)>& take)
      : place_(place), take_(take) {
    for (const PreTokenizer::Step& step : steps) stages_.push_back({.step = &step});
  }

  // `word` is not empty.
  void Put(size_t stage, std::string_view word) {
    if (stage == stages_.size()) return take_(word);
    std::visit([&](const auto& step) { Apply(step, stage, word); }, *stages_[stage].step);
  }

 private:
  struct Stage {
    const PreTokenizer::Step* step = nullptr;
    std::unique_ptr<RegexScan> scan = {};
    bool has_begun = false;  // a word has come
  };

  void Apply(const SplitStep& step, size_t stage, std::string_view word) {
    Cut(step.pattern, step.behavior, step.cut, stage, word);
  }

  void Apply(const PrefixSpaceStep&, size_t stage, std::string_view word) {
    if (word.starts_with(' ')) return Put(stage + 1, word);
    std::string text = " ";
    text += word;
    Put(stage + 1, text);
  }

  void Apply(const MetaspaceStep& step, size_t stage, std::string_view word) {
    std::string text;
    for (const char byte : word) {
      if (byte == ' ') {
        text += step.replacement;
      } else {
        text += byte;
      }
    }
    const bool is_first =
        !std::exchange(stages_[stage].has_begun, true) && place_ == TextPlace::kStart;
    const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                          (step.prepend == MetaspaceStep::Prepend::kFirst && is_first);
    if (prepends && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    if (!step.split) return Put(stage + 1, text);
    Cut(step.pattern, SplitStep::Behavior::kMergedWithNext, SplitStep::Cut::kAtMatches, stage,
        text);
  }

  // All of the word, match by match; parts that are joined go on as one.
  void Cut(const Regex& pattern, SplitStep::Behavior behavior, SplitStep::Cut cut, size_t stage,
           std::string_view word) {
    const bool match_is_delimiter = cut == SplitStep::Cut::kAtMatches;
    std::optional<Part> last;
    TextSpan joined;
    const auto end_joined = [&] {
      const bool is_removed = behavior == SplitStep::Behavior::kRemoved && last->is_delimiter;
      if (joined.size() > 0 && !is_removed) Put(stage + 1, joined.In(word));
    };
    const auto add = [&](const Part& part) {
      if (last && Joins(behavior, *last, part)) {
        joined.end = part.span.end;
      } else {
        if (last) end_joined();
        joined = part.span;
      }
      last = part;
    };
    if (!stages_[stage].scan) stages_[stage].scan = std::make_unique<RegexScan>(pattern);
    RegexScan& scan = *stages_[stage].scan;
    size_t done = 0;
    scan.Start(word);
    while (const std::optional<TextSpan> match = scan.Next()) {
      if (done < match->begin) add({{done, match->begin}, !match_is_delimiter});
      add({*match, match_is_delimiter});
      done = match->end;
    }
    if (done < word.size()) add({{done, word.size()}, !match_is_delimiter});
    if (last) end_joined();
  }

  TextPlace place_;
  const std::function<void(std::string_view)>& take_;
  std::vector<Stage> stages_ = {};
};

}  // namespace

void PreTokenizer::ForEachWord(std::string_view text, TextPlace place,
                               const std::function<void(std::string_view)>& take) const {
  if (!text.empty()) Splitting(steps_, place, take).Put(0, text);
}

}  // namespace quire
