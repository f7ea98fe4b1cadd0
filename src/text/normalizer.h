// What a tokenizer makes of a text before it looks for words.
#ifndef QUIRE_TEXT_NORMALIZER_H_
#define QUIRE_TEXT_NORMALIZER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace quire {

// Puts `text` before every text that is not empty.
struct PrependStep {
  std::string text = {};
};

// Puts `content` in place of every match.
struct ReplaceStep {
  Regex pattern;
  std::string content = {};
};

// Throws Error(kCapacityExceeded) if the result would have more than `max_bytes`.
std::string Replace(const ReplaceStep& step, std::string_view text, size_t max_bytes);

// What a few replacements may make of a text of so many bytes. (A space may become three bytes.)
inline size_t MaxReplacedBytes(size_t num_bytes) { return 4096 + 16 * num_bytes; }

class Normalizer {
 public:
  using Step = std::variant<PrependStep, ReplaceStep>;

  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool IsIdentity() const { return steps_.empty(); }
  // Throws Error(kCapacityExceeded) if the result is out of proportion: MaxReplacedBytes.
  std::string Normalize(std::string_view text) const;

 private:
  std::vector<Step> steps_ = {};  // one after the other
};

}  // namespace quire

#endif  // QUIRE_TEXT_NORMALIZER_H_
