// Drafts of another drafter, in the shape that pays for the sequences that run, or none where none does.
//
// Where nothing is drafted a draft layer does not run at all: a sequence that begins, or goes on, while none
// pays is left out of the layer's passes, and gets no drafts to its end, because rows would be missing.
#ifndef QUIRE_RUNNER_ADAPTIVE_DRAFTER_H_
#define QUIRE_RUNNER_ADAPTIVE_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/drafter.h"
#include "runner/layer_drafter.h"
#include "runner/shape_chooser.h"
#include "step/step.h"

namespace quire {

// The smallest shape that has room for all of these.
TreeShape ShapeAround(std::span<const TreeShape> shapes);

class AdaptiveDrafter final : public Drafter {
 public:
  // `drafter` has room for ShapeAround(shapes), and drafts in the shape that use_shape was called with last; one of
  // chains takes what room it is given, and need not be told. Drafts nothing until one of the next two is called.
  // Takes no memory in a step.
  using UseShape = std::function<void(const TreeShape&)>;
  AdaptiveDrafter(std::unique_ptr<Drafter> drafter, UseShape use_shape,
                  std::vector<TreeShape> shapes, int32_t max_seqs);

  std::span<const TreeShape> shapes() const { return shapes_; }

  // From now on, 0 for none or the number of a shape, from 1 on, for all sequences that begin. Chains are whole, to
  // be measured: what the drafter does not guess is any token.
  void Fix(size_t number) { fixed_ = number; }
  // From now on as these costs say; without any, none.
  void ChooseBy(ShapeCosts costs);

  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override;
  void Take(std::span<const StepOutcome> outcomes) override;

 private:
  // A sequence that runs, or ran; whether the drafter was told of all its steps; and its tokens that the chooser
  // was not told of.
  struct Guest {
    uint64_t id = 0;
    int64_t used_in = 0;
    bool is_fed = false;
    int64_t of_prompt = 0;
    int64_t drawn = 0;
  };

  size_t Choose(size_t num_seqs) const;
  Guest& FindOrTake(uint64_t id, size_t choice);
  static void FillUp(Draft& draft);
  static void CountTokens(const StepOutcome& outcome, Guest& guest);
  void NoteDraft(const StepOutcome& outcome);
  void NoteTokens(Guest& guest);

  const std::unique_ptr<Drafter> drafter_;
  const UseShape use_shape_;
  const std::vector<TreeShape> shapes_;
  size_t fixed_ = 0;
  std::optional<ShapeChooser> chooser_;
  size_t drafted_ = 0;  // the shape of the drafts of the step at hand
  std::vector<Guest> guests_;
  int64_t num_uses_ = 0;
  std::vector<StepOutcome> fed_;  // of the step at hand
};

}  // namespace quire

#endif  // QUIRE_RUNNER_ADAPTIVE_DRAFTER_H_
