#include "runner/batch_message.h"

#include <algorithm>
#include <span>

namespace quire {
namespace {

// Gives `list`, which has its length, its place behind what was placed before.
template <class T>
void Place(std::span<const T>& list, std::span<const T>& room) {
  const size_t size = list.size();
  list = room.first(size);
  room = room.subspan(size);
}

// fn(list) of all numbers of a sequence, in one order for who writes and who reads.
template <class Sequence, class Fn>
void ForEachNumbers(Sequence& seq, Fn fn) {
  fn(seq.tokens);
  fn(seq.tree_parents);
  fn(seq.prompt);
  fn(seq.output);
}

// Of output that nobody reads one token stays, since a drafter asks whether there is any.
StepSequence WithTextIfNeeded(StepSequence seq) {
  if (HasPenalties(seq.sampling) || seq.lookahead > TokenCount(0)) return seq;
  seq.prompt = {};
  seq.output = seq.output.first(std::min<size_t>(seq.output.size(), 1));
  return seq;
}

}  // namespace

// Sequences go as they are, with spans of which the length alone means something to who reads them.
void WriteBatch(const StepBatch& batch, MessageWriter& message) {
  message.PutList(batch.moves);
  message.PutList(batch.copies);
  message.Put(batch.sequences.size());
  size_t num_numbers = 0, num_pages = 0, num_biases = 0, num_words = 0;
  for (const StepSequence& each : batch.sequences) {
    const StepSequence seq = WithTextIfNeeded(each);
    message.Put(seq);
    ForEachNumbers(seq, [&](auto list) { num_numbers += list.size(); });
    num_pages += seq.pages.size();
    num_biases += seq.sampling.logit_bias.size();
    num_words += seq.mask.size();
  }
  for (const size_t count : {num_numbers, num_pages, num_biases, num_words}) message.Put(count);
  for (const StepSequence& each : batch.sequences) {
    const StepSequence seq = WithTextIfNeeded(each);
    ForEachNumbers(seq, [&](auto list) { message.PutAll(list); });
  }
  for (const StepSequence& seq : batch.sequences) message.PutAll(seq.pages);
  for (const StepSequence& seq : batch.sequences) message.PutAll(seq.sampling.logit_bias);
}

void WriteMasks(const StepBatch& batch, MessageWriter& message) {
  for (const StepSequence& seq : batch.sequences) message.PutAll(seq.mask);
}

StepBatch BatchReader::Read(MessageReader& message) {
  message.TakeList(moves_);
  message.TakeList(copies_);
  message.TakeList(sequences_);
  numbers_.resize(message.Take<size_t>());
  pages_.resize(message.Take<size_t>());
  biases_.resize(message.Take<size_t>());
  masks_.resize(message.Take<size_t>());
  message.TakeAll(std::span(numbers_));
  message.TakeAll(std::span(pages_));
  message.TakeAll(std::span(biases_));
  std::span<const int32_t> numbers = numbers_;
  std::span<const PageId> pages = pages_;
  std::span<const LogitBias> biases = biases_;
  std::span<const uint32_t> masks = masks_;
  for (StepSequence& seq : sequences_) {
    ForEachNumbers(seq, [&](std::span<const int32_t>& list) { Place(list, numbers); });
    Place(seq.pages, pages);
    Place(seq.sampling.logit_bias, biases);
    Place(seq.mask, masks);
  }
  return {.moves = moves_, .copies = copies_, .sequences = sequences_};
}

void BatchReader::ReadMasks(MessageReader& message) { message.TakeAll(std::span(masks_)); }

void WriteResult(const StepResult& result, MessageWriter& message) {
  size_t num_answers = 0, num_tokens = 0, num_tops = 0;
  for (const StepSequenceResult& seq : result.sequences) {
    num_answers += seq.answers.size();
    for (const StepAnswer& answer : seq.answers) {
      num_tokens += answer.tokens.size();
      for (const StepToken& token : answer.tokens) num_tops += token.top.size();
    }
  }
  message.PutList(result.sequences);
  for (const size_t count : {num_answers, num_tokens, num_tops}) message.Put(count);
  for (const StepSequenceResult& seq : result.sequences) message.PutAll(seq.answers);
  for (const StepSequenceResult& seq : result.sequences) {
    for (const StepAnswer& answer : seq.answers) message.PutAll(answer.tokens);
  }
  for (const StepSequenceResult& seq : result.sequences) {
    for (const StepAnswer& answer : seq.answers) {
      for (const StepToken& token : answer.tokens) message.PutAll(token.top);
    }
  }
}

const StepResult& ResultReader::Read(MessageReader& message) {
  message.TakeList(sequences_);
  answers_.resize(message.Take<size_t>());
  tokens_.resize(message.Take<size_t>());
  tops_.resize(message.Take<size_t>());
  message.TakeAll(std::span(answers_));
  message.TakeAll(std::span(tokens_));
  message.TakeAll(std::span(tops_));
  std::span<const StepAnswer> answers = answers_;
  std::span<const StepToken> tokens = tokens_;
  std::span<const TokenLogprob> tops = tops_;
  for (StepSequenceResult& seq : sequences_) Place(seq.answers, answers);
  for (StepAnswer& answer : answers_) Place(answer.tokens, tokens);
  for (StepToken& token : tokens_) Place(token.top, tops);
  result_.sequences = sequences_;
  return result_;
}

}  // namespace quire
