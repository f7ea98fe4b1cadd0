#include "runner/step_inputs.h"

namespace quire {

TokenCount NumTokens(const StepBatch& batch) {
  TokenCount num_tokens{0};
  for (const StepSequence& seq : batch.sequences) num_tokens += TokenCount(seq.tokens.size());
  return num_tokens;
}

void Pack(const StepBatch& batch, PageSize page_size, const StepInputs& inputs) {
  size_t t = 0;
  size_t row = 0;
  for (const StepSequence& seq : batch.sequences) {
    const TokenCount q_len(seq.tokens.size());
    inputs.seqs[row++] = {.q_len = q_len, .kv_len = seq.position + q_len, .pages = seq.pages};
    for (size_t i = 0; i < seq.tokens.size(); ++i, ++t) {
      const TokenCount position = seq.position + TokenCount(i);
      const PageId page = seq.pages[static_cast<size_t>(page_size.FullPages(position).raw())];
      inputs.tokens[t] = seq.tokens[i];
      inputs.positions[t] = position;
      inputs.slots[t] = page_size.SlotOf(page, page_size.OffsetOf(position));
    }
  }
}

void PadTo(const BucketSize& size, PageSize page_size, size_t num_seqs, TokenCount num_tokens,
           const StepInputs& inputs) {
  const auto end_row = static_cast<size_t>(size.num_seqs);
  const auto end_token = static_cast<size_t>(size.num_tokens.raw());
  TokenCount left = size.num_tokens - num_tokens;
  const bool one_each = left == TokenCount(end_row - num_seqs);
  for (size_t row = num_seqs; row < end_row; ++row) {
    // A decode bucket's rows have a token each; elsewhere the first padded row has all of them.
    const TokenCount q_len = one_each ? TokenCount(1) : left;
    inputs.seqs[row] = {.q_len = q_len};
    left -= q_len;
  }
  for (auto t = static_cast<size_t>(num_tokens.raw()); t < end_token; ++t) {
    inputs.tokens[t] = 0;
    inputs.positions[t] = TokenCount(0);
    inputs.slots[t] = page_size.SlotOf(kScratchPage, 0);
  }
}

}  // namespace quire
