// A drafter that knows how texts go on, and drafts well or badly on purpose.
#ifndef QUIRE_TESTING_SCRIPTED_DRAFTER_H_
#define QUIRE_TESTING_SCRIPTED_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "decode/drafter.h"
#include "step/step.h"

namespace quire::testing {

enum class DraftStyle {
  kRight,        // a chain of what comes next
  kWrong,        // a chain whose first token does not
  kLastSibling,  // of three at every level only the last, which alone goes on
  kRandom,  // any tree; about every second token is right for its depth, and some are there twice
};
inline constexpr DraftStyle kDraftStyles[] = {DraftStyle::kRight, DraftStyle::kWrong,
                                              DraftStyle::kLastSibling, DraftStyle::kRandom};

// Of texts, prompts with their answers: the first that begins with the sequence's text says what comes.
std::span<const int32_t> NextOf(std::span<const std::vector<int32_t>> texts,
                                const StepSequence& seq);

class ScriptedDrafter final : public Drafter {
 public:
  // What follows the sequence's output, as far as that is known; behind it, tokens are drawn.
  using Script = std::function<std::span<const int32_t>(const StepSequence&)>;

  ScriptedDrafter(Script script, DraftStyle style, int64_t vocab_size, uint64_t seed);

  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override;

 private:
  int32_t Any() { return static_cast<int32_t>(random_() % static_cast<uint64_t>(vocab_size_)); }
  void Add(std::span<const int32_t> next, Draft& draft);

  const Script script_;
  const DraftStyle style_;
  const int64_t vocab_size_;
  std::mt19937_64 random_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SCRIPTED_DRAFTER_H_
