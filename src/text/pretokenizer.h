// The words of a text: what is encoded by itself, so that no token reaches over a word's end.
#ifndef QUIRE_TEXT_PRETOKENIZER_H_
#define QUIRE_TEXT_PRETOKENIZER_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quire {

// Cuts every word where a pattern matches.
struct SplitStep {
  enum class Behavior {   // of "the-final--countdown", split at "-":
    kIsolated,            // the - final - - countdown
    kRemoved,             // the final countdown
    kMergedWithPrevious,  // the- final- - countdown
    kMergedWithNext,      // the -final - -countdown
    kContiguous,          // the - final -- countdown
  };
  enum class Cut { kAtMatches, kBetweenMatches };

  Regex pattern;
  Behavior behavior = Behavior::kIsolated;
  Cut cut = Cut::kAtMatches;  // or: what matches is what is left, what does not is the delimiter
};

// Puts a space before every word that does not begin with one.
struct PrefixSpaceStep {};

// Puts `replacement` for every space, and before a text; cuts before each if `split`.
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };  // where: every word, the text's first, nowhere

  std::string replacement = {};
  Prepend prepend = Prepend::kAlways;
  bool split = true;
  Regex pattern;  // finds `replacement`
};

enum class TextPlace { kStart, kLater };  // is it the beginning of what is encoded?

class PreTokenizer {
 public:
  using Step = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // Gives `take` the words of `text`, in order, none empty; one, if there are no steps. A word lives as
  // long as the call that takes it: there may be as many as bytes, so they are never all in memory.
  void ForEachWord(std::string_view text, TextPlace place,
                   const std::function<void(std::string_view)>& take) const;

 private:
  std::vector<Step> steps_ = {};  // each cuts the words of the one before
};

}  // namespace quire

#endif  // QUIRE_TEXT_PRETOKENIZER_H_
