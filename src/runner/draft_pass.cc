#include "runner/draft_pass.h"

#include <algorithm>

#include "model/draft.h"

namespace quire {

TensorView DraftedLogits(const DraftModel& drafting, const StepMemory& memory, int64_t count) {
  const TensorView logits = memory.logits.FirstRows(count);
  if (drafting.head == nullptr) return logits;
  return logits.Columns(0, drafting.head->config().draft_vocab_size);
}

void RunDraft(const DraftModel& drafting, const ForwardArgs& rows, const StepMemory& memory,
              size_t num_rows, Ops& ops, FunctionRef<void(int64_t first, int64_t count)> take) {
  const EagleHead* const head = drafting.head;
  const DraftInputs& inputs = memory.device_draft;
  const DraftArgs args{.rows = rows,
                       .states = memory.states,
                       .state_of = inputs.state_of.first(rows.tokens.size()),
                       .keys_alone = num_rows == 0 && !rows.tokens.empty()};
  head == nullptr ? ForwardDraft(drafting.model, args, ops) : head->Forward(args, ops);
  const auto end = static_cast<int64_t>(num_rows);
  const int64_t block = memory.logits.dim(0);
  const int64_t width = memory.states.dim(1);
  for (int64_t first = 0; first < end; first += block) {
    const int64_t count = std::min(block, end - first);
    const TensorView states =
        memory.states.FirstRows(count).Shifted((memory.first_row_state + first) * width);
    const LogitsArgs logits{
        .hidden = rows.buffers.hidden,
        .rows = inputs.wanted.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
        .picked = memory.picked.FirstRows(count),
        .normed = head == nullptr ? states : memory.normed.FirstRows(count),
        .logits = DraftedLogits(drafting, memory, count)};
    if (head == nullptr) {
      DraftLogits(drafting.model, logits, ops);
    } else {
      head->Logits(logits, states, ops);
    }
    take(first, count);
  }
}

}  // namespace quire
