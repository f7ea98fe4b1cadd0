// Drafts without a model: what followed the last tokens where they stood before in the same text.
#ifndef QUIRE_DECODE_NGRAM_DRAFTER_H_
#define QUIRE_DECODE_NGRAM_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "decode/drafter.h"
#include "step/step.h"

namespace quire {

// A sequence's prompt and output, in one.
class SequenceText {
 public:
  explicit SequenceText(const StepSequence& seq) : prompt_(seq.prompt), output_(seq.output) {}
  size_t size() const { return prompt_.size() + output_.size(); }
  int32_t operator[](size_t i) const {
    return i < prompt_.size() ? prompt_[i] : output_[i - prompt_.size()];
  }

 private:
  std::span<const int32_t> prompt_;
  std::span<const int32_t> output_;
};

// Where runs of kShortest to kLongest tokens stand in a text that grows: the last place of each.
//
// Invariant: of every run that ends before num_indexed_ there is one entry, the place where it ended
// last, in the probe sequence that begins at its hash.
class NgramIndex {
 public:
  static constexpr size_t kShortest = 2;
  static constexpr size_t kLongest = 8;

  // For texts of up to `context` tokens. Memory is reserved, and touched as a text grows.
  explicit NgramIndex(TokenCount context);

  // Forgets its text.
  void Clear();
  // Where the longest run of tokens that ends the text stood before, and was last: the place behind it;
  // 0 if there is none. `text` has a token or more, and is the one of the calls before, or a longer one
  // that begins with it: of another one some runs may not be found, or all is begun anew. Takes a time
  // that the new tokens bound.
  size_t Find(const SequenceText& text);

 private:
  void Index(const SequenceText& text, size_t end);
  void Grow(size_t num_tokens);
  void Insert(const SequenceText& text, size_t end, size_t length);
  size_t SlotOf(const SequenceText& text, size_t end, size_t length) const;

  size_t most_slots_;
  std::vector<uint32_t> ends_;  // a power of two: place behind the run << 3 | length - 1; 0: free
  size_t num_indexed_ = 0;      // runs that end here or before are in it
};

// A chain of what followed the longest match. Keeps an index for each of the last `max_seqs`
// sequences; another one is indexed when it is seen first, or again after so many others. Nothing is
// taken from the heap later.
class NgramDrafter final : public Drafter {
 public:
  NgramDrafter(int32_t max_seqs, TokenCount context);

  // Sequences whose id is 0 get no drafts.
  void AddNodes(const StepBatch& batch, std::span<Draft> drafts) override;

 private:
  struct Place {
    uint64_t id = 0;  // 0: nobody's
    int64_t used_in = 0;
    NgramIndex index;
  };
  NgramIndex& IndexOf(uint64_t id);

  std::vector<Place> places_;
  int64_t num_uses_ = 0;
};

}  // namespace quire

#endif  // QUIRE_DECODE_NGRAM_DRAFTER_H_
