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
// instead, if there is one.
class MixedDrafter final : public Drafter {
 public:
  using Observer = std::function<void(const StepBatch&, std::span<const Draft>)>;

  explicit MixedDrafter(std::unique_ptr<Drafter> layer, std::unique_ptr<Drafter> scripted = {},
                        Observer observe = {})
      : layer_(std::move(layer)), scripted_(std::move(scripted)), observe_(std::move(observe)) {}

  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override {
    layer_->AddNodes(batch, drafts);
    if (observe_) observe_(batch, drafts);
    if (!scripted_) return;
    for (Draft& draft : drafts) {
      if (random_() % 2 == 0) continue;
      draft.num_nodes = 1;
      scripted_->AddNodes(batch, {&draft, 1});
    }
  }
  void Take(std::span<const StepOutcome> outcomes) override { layer_->Take(outcomes); }

 private:
  const std::unique_ptr<Drafter> layer_, scripted_;
  const Observer observe_;
  std::mt19937_64 random_{11};
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_MIXED_DRAFTER_H_
