// An engine over runners that speculate: what the tests of it share.
#ifndef QUIRE_TESTING_INVARIANTS_ENGINE_SPECULATION_H_
#define QUIRE_TESTING_INVARIANTS_ENGINE_SPECULATION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "decode/ngram_drafter.h"
#include "model/eagle.h"
#include "runner/layer_drafter.h"
#include "runner/speculative_runner.h"
#include "testing/invariants/engine_cases.h"
#include "testing/invariants/engine_random.h"
#include "testing/mixed_drafter.h"
#include "testing/scripted_drafter.h"

namespace quire::testing {

class EngineSpeculation : public EngineRandom {
 protected:
  EngineSpeculation() : EngineRandom(25) {}

  // nullopt: by ngrams.
  void Speculate(std::optional<DraftStyle> style, int64_t num_nodes) {
    const DraftRoom room = DraftRoom::OfNodes(num_nodes);
    auto target = MakeTestRunner(GetParam().model, TargetOptions(CaseOptions(1), room));
    std::unique_ptr<Drafter> drafter;
    if (style) {
      drafter = std::make_unique<ScriptedDrafter>(
          [this](const StepSequence& seq) { return Next(seq); }, *style,
          target->limits().vocab_size, static_cast<uint64_t>(num_nodes));
    } else {
      drafter = std::make_unique<NgramDrafter>(kMaxSeqs, target->limits().context);
    }
    runner_ = std::make_unique<SpeculativeRunner>(std::move(target), std::move(drafter), room);
  }

  // By the model's draft layer, or by `head`; about half of the drafts are a script's, so that some are
  // right.
  void SpeculateByLayer(const TreeShape& shape, DraftStyle style, const OpenedHead* head) {
    RunnerOptions options = LayerTargetOptions(CaseOptions(1), shape);
    options.head = head;
    auto target = MakeTestRunner(GetParam().model, options);
    auto layer = std::make_unique<LayerDrafter>(*target->draft_runner(), target->limits(), shape);
    auto scripted = std::make_unique<ScriptedDrafter>(
        [this](const StepSequence& seq) { return Next(seq); }, style, target->limits().vocab_size,
        static_cast<uint64_t>(shape.nodes));
    runner_ = std::make_unique<SpeculativeRunner>(
        std::move(target), std::make_unique<MixedDrafter>(std::move(layer), std::move(scripted)),
        shape.Room());
  }

  // The loop numbers requests by their seeds, from 1.
  std::span<const int32_t> Next(const StepSequence& seq) {
    const Request& request = earlier_[static_cast<size_t>(seq.sampling.seed) - 1];
    const LoneAnswer& alone = lone_.Answer(request, seq.first_sample, TokenCount(kContext));
    const std::span<const int32_t> output = alone.report.output;
    return output.subspan(std::min(seq.output.size(), output.size()));
  }

  Met Run(std::optional<DraftStyle> style, int64_t num_nodes, Pages pages) {
    SCOPED_TRACE(::testing::Message() << "style " << (style ? static_cast<int>(*style) : -1) << ", "
                                      << num_nodes << " nodes");
    Speculate(style, num_nodes);
    Met met;
    RunWorkload(1, pages, met);
    return met;
  }
};

class EngineLayerDrafts : public EngineSpeculation {
 protected:
  // Any that can be, by the seed.
  static TreeShape DrawShape(uint64_t seed) {
    Random random(seed);
    TreeShape shape{.steps = random.Between(1, kMaxDraftSteps),
                    .branches = random.Between(1, kMaxDraftBranches)};
    const int64_t most = std::min(shape.candidates() + 1, kMaxDraftNodes);
    shape.nodes = shape.branches == 1 ? shape.steps + 1 : random.Between(2, most);
    return shape;
  }

  Met RunLayer(uint64_t seed, DraftStyle style, Pages pages, const OpenedHead* head = nullptr) {
    const TreeShape shape = DrawShape(seed);
    SCOPED_TRACE(::testing::Message()
                 << "shape " << shape.steps << "-" << shape.branches << "-" << shape.nodes);
    SpeculateByLayer(shape, style, head);
    Met met;
    RunWorkload(seed, pages, met);
    return met;
  }
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_ENGINE_SPECULATION_H_
