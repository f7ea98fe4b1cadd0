// Drafts of a draft layer where the layer's own are seldom right: some are replaced by a script's.
#ifndef QUIRE_TESTING_MIXED_DRAFTER_H_
#define QUIRE_TESTING_MIXED_DRAFTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "decode/drafter.h"
#include "step/step.h"

namespace quire::testing {

// Takes the drafts of `layer`, shows them to `observe`, and has about half of them drafted by `scripted`
// instead, if there is one. Of drafts that grow on a device those are shown that are used, with the text
// that they were for, once they are known.
class MixedDrafter final : public Drafter {
 public:
  using Observer = std::function<void(const std::vector<int32_t>& text, const Draft&)>;

  explicit MixedDrafter(std::unique_ptr<Drafter> layer, std::unique_ptr<Drafter> scripted = {},
                        Observer observe = {})
      : layer_(std::move(layer)), scripted_(std::move(scripted)), observe_(std::move(observe)) {}

  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override {
    layer_->AddNodes(batch, drafts);
    open_.clear();
    for (Draft& draft : drafts) {
      const std::vector<int32_t> text = TextOf(batch.sequences[draft.sequence]);
      const bool is_open = draft.grown != nullptr;
      if (observe_ && !is_open) observe_(text, draft);
      if (scripted_ && random_() % 2 != 0) {
        draft.num_nodes = 1;
        draft.grown = nullptr;
        scripted_->AddNodes(batch, {&draft, 1});
      } else if (observe_ && is_open) {
        open_.push_back({.text = text, .draft = draft});
      }
    }
  }
  void Take(std::span<const StepOutcome> outcomes) override {
    for (const Open& open : open_) observe_(open.text, open.draft);
    open_.clear();
    layer_->Take(outcomes);
  }

  static std::vector<int32_t> TextOf(const StepSequence& seq) {
    std::vector<int32_t> text(seq.prompt.begin(), seq.prompt.end());
    text.insert(text.end(), seq.output.begin(), seq.output.end());
    return text;
  }

 private:
  struct Open {
    std::vector<int32_t> text;
    Draft draft;
  };
  std::vector<Open> open_;  // of the step at hand
  const std::unique_ptr<Drafter> layer_, scripted_;
  const Observer observe_;
  std::mt19937_64 random_{11};
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_MIXED_DRAFTER_H_
