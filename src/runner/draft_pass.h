// A pass of the draft layer over the memory of steps: what all devices do alike.
#ifndef QUIRE_RUNNER_DRAFT_PASS_H_
#define QUIRE_RUNNER_DRAFT_PASS_H_

#include <cstddef>
#include <cstdint>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "kernels/ops.h"
#include "model/eagle.h"
#include "model/forward.h"
#include "runner/step_memory.h"

namespace quire {

// What drafts: a model's own layer, or an EAGLE-3 head.
struct DraftModel {
  // NOLINTNEXTLINE(google-explicit-constructor): a model with a layer is one
  DraftModel(const Model& with_layer, const EagleHead* with_head = nullptr)
      : model(with_layer), head(with_head) {}

  const Model& model;
  const EagleHead* head;
};

// Where the logits of so many rows of a pass are: a head's are of a vocabulary of its own.
TensorView DraftedLogits(const DraftModel& drafting, const StepMemory& memory, int64_t count);

// The layer over `rows`, as ForwardDraft takes them, and the logits of the first `num_rows` rows that
// the device's DraftInputs want, in blocks: take(first, count) is called when those of a block are in
// DraftedLogits, and their states among memory.states. If none are wanted, the rows are only written; without
// any rows the layer's experts serve those of other ranks. Buffers and stores of `rows` are the layer's, or the
// head's.
void RunDraft(const DraftModel& drafting, const ForwardArgs& rows, const StepMemory& memory,
              size_t num_rows, Ops& ops, FunctionRef<void(int64_t first, int64_t count)> take);

}  // namespace quire

#endif  // QUIRE_RUNNER_DRAFT_PASS_H_
