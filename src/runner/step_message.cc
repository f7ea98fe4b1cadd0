#include "runner/step_message.h"

namespace quire {
namespace {

// fn(span) of what the host filled for a step, in one order for who writes and who reads.
template <class Fn>
void ForEachInput(const StepWork& work, const StepMemory& memory, Fn fn) {
  const BucketInputs& inputs = memory.buckets[work.bucket].host;
  const RareInputs& rare = memory.host_rare;
  fn(inputs.tokens.first(work.num_tokens));
  fn(inputs.positions.first(work.num_tokens));
  fn(inputs.slots.first(work.num_tokens));
  fn(inputs.live_tokens);
  fn(inputs.logit_rows);
  fn(rare.move_from.first(work.num_moves));
  fn(rare.move_to.first(work.num_moves));
  fn(rare.copy_from.first(work.num_copies));
  fn(rare.copy_to.first(work.num_copies));
}

}  // namespace

void WriteStep(const StepWork& work, const StepMemory& memory, MessageWriter& message) {
  message.Put(work.bucket);
  message.Put(work.num_tokens);
  message.Put(work.num_moves);
  message.Put(work.num_copies);
  ForEachInput(work, memory, [&](auto values) { message.PutAll(values); });
  message.Put(work.seqs.size());
  message.PutAll(work.uses);
  for (const SequenceStep& seq : work.seqs) {
    QUIRE_CHECK(!seq.expanded, "ranks expand no prompts");
    message.Put(StepReader::SequenceHeader{.q_len = seq.q_len,
                                           .kv_len = seq.kv_len,
                                           .num_pages = seq.pages.size(),
                                           .num_parents = seq.tree_parents.size()});
  }
  for (const SequenceStep& seq : work.seqs) message.PutAll(seq.pages);
  for (const SequenceStep& seq : work.seqs) message.PutAll(seq.tree_parents);
}

StepWork StepReader::Read(MessageReader& message, StepMemory& memory) {
  StepWork work{.bucket = message.Take<size_t>(),
                .num_tokens = message.Take<size_t>(),
                .num_moves = message.Take<size_t>(),
                .num_copies = message.Take<size_t>()};
  ForEachInput(work, memory, [&](auto values) { message.TakeAll(values); });
  // Rank 0 alone draws tokens. What the bucket says of that may be bytes of another one, in whose place
  // it lies.
  memory.buckets[work.bucket].next->packer.Begin(0);
  const auto num_seqs = message.Take<size_t>();
  const std::span<SequenceStep> seqs = memory.seqs.first(num_seqs);
  const std::span<RowUse> uses = memory.uses.first(num_seqs);
  message.TakeAll(uses);
  // The spans have their lengths first, and their places once all are there.
  headers_.resize(num_seqs);
  message.TakeAll(std::span(headers_));
  size_t num_pages = 0, num_parents = 0;
  for (const SequenceHeader& header : headers_) {
    num_pages += header.num_pages;
    num_parents += header.num_parents;
  }
  pages_.resize(num_pages);
  parents_.resize(num_parents);
  message.TakeAll(std::span(pages_));
  message.TakeAll(std::span(parents_));
  std::span<const PageId> pages = pages_;
  std::span<const int32_t> parents = parents_;
  for (size_t i = 0; i < num_seqs; ++i) {
    const SequenceHeader& header = headers_[i];
    seqs[i] = {.q_len = header.q_len,
               .kv_len = header.kv_len,
               .pages = pages.first(header.num_pages),
               .tree_parents = parents.first(header.num_parents)};
    pages = pages.subspan(header.num_pages);
    parents = parents.subspan(header.num_parents);
  }
  work.seqs = seqs;
  work.uses = uses;
  return work;
}

}  // namespace quire
