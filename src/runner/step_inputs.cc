#include "runner/step_inputs.h"

namespace quire {

TokenCount NumTokens(const StepBatch& batch) {
  TokenCount num_tokens{0};
  for (const StepSequence& seq : batch.sequences) num_tokens += TokenCount(seq.tokens.size());
  return num_tokens;
}

TokenCount PositionOf(const StepSequence& seq, size_t token) {
  const TokenCount place = seq.position + TokenCount(token);
  if (seq.tree_parents.empty()) return place;
  const TokenCount end = seq.position + TokenCount(seq.tokens.size());
  TokenCount position = end - TokenCount(seq.tree_parents.size());  // of what follows no node
  auto node = static_cast<int32_t>(seq.tree_parents.size() - seq.tokens.size() + token);
  while ((node = seq.tree_parents[static_cast<size_t>(node)]) != kTreeRoot) {
    position += TokenCount(1);
  }
  return position;
}

bool IsChain(std::span<const int32_t> tree_parents) {
  for (size_t i = 0; i < tree_parents.size(); ++i) {
    if (tree_parents[i] != static_cast<int32_t>(i) - 1) return false;
  }
  return true;
}

void Pack(const StepBatch& batch, PageSize page_size, const StepInputs& inputs) {
  size_t t = 0;
  size_t row = 0;
  for (const StepSequence& seq : batch.sequences) {
    const TokenCount q_len(seq.tokens.size());
    const TokenCount kv_len = seq.position + q_len;
    const PageCount needed = page_size.PagesFor(kv_len + seq.lookahead);
    inputs.seqs[row++] = {.q_len = q_len,
                          .kv_len = kv_len,
                          .pages = seq.pages.first(static_cast<size_t>(needed.raw())),
                          .tree_parents = seq.tree_parents};
    for (size_t i = 0; i < seq.tokens.size(); ++i, ++t) {
      const TokenCount place = seq.position + TokenCount(i);
      const PageId page = seq.pages[static_cast<size_t>(page_size.FullPages(place).raw())];
      inputs.tokens[t] = seq.tokens[i];
      inputs.positions[t] = PositionOf(seq, i);
      inputs.slots[t] = page_size.SlotOf(page, page_size.OffsetOf(place));
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
