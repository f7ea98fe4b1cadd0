#include "decode/ngram_drafter.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// Runs that end at one token.
constexpr size_t kRuns = NgramIndex::kLongest - NgramIndex::kShortest + 1;
constexpr size_t kFewestSlots = 1024;

// At most half of them are in use.
size_t SlotsFor(size_t num_tokens) {
  return std::bit_ceil(std::max(kFewestSlots, 2 * kRuns * num_tokens));
}

constexpr uint32_t Entry(size_t end, size_t length) {
  return static_cast<uint32_t>(end << 3 | (length - 1));
}
constexpr size_t EndOf(uint32_t entry) { return entry >> 3; }
constexpr size_t LengthOf(uint32_t entry) { return (entry & 7) + 1; }

bool IsSameRun(const SequenceText& text, size_t a, size_t b, size_t length) {
  for (size_t i = 1; i <= length; ++i) {
    if (text[a - i] != text[b - i]) return false;
  }
  return true;
}

}  // namespace

NgramIndex::NgramIndex(TokenCount context) {
  Require(context >= TokenCount(1) && context < TokenCount(1 << 29),
          "ngram: context: expected 1..{}, got {}", (1 << 29) - 1, context);
  most_slots_ = SlotsFor(static_cast<size_t>(context.raw()));
  ends_.reserve(most_slots_);
  ends_.resize(kFewestSlots);
}

void NgramIndex::Clear() {
  ends_.assign(kFewestSlots, 0);
  num_indexed_ = 0;
}

size_t NgramIndex::Find(const SequenceText& text) {
  // Without the runs that end the text: they would be found.
  const size_t end = text.size() - 1;
  if (end < num_indexed_) Clear();
  Index(text, end);
  for (size_t length = std::min(kLongest, text.size()); length >= kShortest; --length) {
    const uint32_t entry = ends_[SlotOf(text, text.size(), length)];
    if (entry != 0) return EndOf(entry);
  }
  return 0;
}

void NgramIndex::Index(const SequenceText& text, size_t end) {
  if (SlotsFor(end) > ends_.size()) Grow(end);
  for (; num_indexed_ < end; ++num_indexed_) {
    for (size_t length = kShortest; length <= std::min(kLongest, num_indexed_ + 1); ++length) {
      Insert(text, num_indexed_ + 1, length);
    }
  }
}

// Twice as many tokens as there are now: so every token is indexed again once, on average.
void NgramIndex::Grow(size_t num_tokens) {
  QUIRE_CHECK(SlotsFor(num_tokens) <= most_slots_, "{} tokens are more than the context",
              num_tokens);
  ends_.assign(std::min(SlotsFor(2 * num_tokens), most_slots_), 0);
  num_indexed_ = 0;
}

void NgramIndex::Insert(const SequenceText& text, size_t end, size_t length) {
  ends_[SlotOf(text, end, length)] = Entry(end, length);
}

// The entry of the run of `length` tokens that ends at `end`, or the free one where it would be.
size_t NgramIndex::SlotOf(const SequenceText& text, size_t end, size_t length) const {
  uint64_t hash = length;
  for (size_t i = 1; i <= length; ++i) {
    hash = (hash ^ static_cast<uint32_t>(text[end - i])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  const size_t mask = ends_.size() - 1;
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const uint32_t entry = ends_[slot];
    if (entry == 0) return slot;
    if (LengthOf(entry) == length && IsSameRun(text, EndOf(entry), end, length)) return slot;
  }
}

NgramDrafter::NgramDrafter(int32_t max_seqs, TokenCount context) {
  Require(max_seqs >= 1, "ngram: sequences: expected at least 1, got {}", max_seqs);
  places_.reserve(static_cast<size_t>(max_seqs));
  for (int32_t i = 0; i < max_seqs; ++i) places_.push_back({.index = NgramIndex(context)});
}

void NgramDrafter::AddNodes(const StepBatch& batch, std::span<Draft> drafts) {
  for (Draft& draft : drafts) {
    const StepSequence& seq = batch.sequences[draft.sequence];
    if (seq.id == 0) continue;
    const SequenceText text(seq);
    size_t from = IndexOf(seq.id).Find(text);
    if (from == 0) continue;
    // What follows may reach the end of the text; it goes on with what was drafted: a period repeats.
    for (; draft.num_nodes < draft.tokens.size(); ++draft.num_nodes, ++from) {
      const size_t node = draft.num_nodes;
      draft.tokens[node] = from < text.size() ? text[from] : draft.tokens[from - text.size() + 1];
      draft.parents[node] = static_cast<int32_t>(node) - 1;
    }
  }
}

NgramIndex& NgramDrafter::IndexOf(uint64_t id) {
  Place* place = &places_.front();
  for (Place& each : places_) {
    if (each.id == id) {
      place = &each;
      break;
    }
    if (each.used_in < place->used_in) place = &each;
  }
  if (std::exchange(place->id, id) != id) place->index.Clear();
  place->used_in = ++num_uses_;
  return place->index;
}

}  // namespace quire
