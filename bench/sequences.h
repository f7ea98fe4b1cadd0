// Sequences over scattered pages, equal or of mixed lengths: the steps that are planned, exported and
// attended to.
#ifndef QUIRE_BENCH_SEQUENCES_H_
#define QUIRE_BENCH_SEQUENCES_H_

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/units.h"
#include "testing/splitmix64.h"

namespace quire::bench {

struct SequenceShape {
  int32_t num_seqs = 1;
  TokenCount q_len{1};
  TokenCount kv_len{1};
  bool is_mixed = false;  // lengths are log-uniform from 1 to kv_len, the same in every run
  std::span<const int64_t> lengths = {};       // of each, instead of kv_len
  std::span<const int32_t> tree_parents = {};  // of the queries of each, where they are a tree
  TokenCount room{0};  // tokens behind kv_len that the page lists have pages for
  PageSize page_size{64};
};

// Every page of the pool but the scratch page belongs to one sequence.
class Sequences {
 public:
  explicit Sequences(const SequenceShape& shape) {
    int64_t num_pages = 0;
    for (int32_t b = 0; b < shape.num_seqs; ++b) num_pages += PagesOf(shape, b).raw();
    pages_.reserve(static_cast<size_t>(num_pages));
    // A prime as stride visits every page once, far from the one before, and takes a fraction of
    // the time that shuffling 33 million pages would.
    constexpr int64_t kStride = 2654435761;
    for (int64_t i = 0; i < num_pages; ++i) pages_.emplace_back(1 + i * kStride % num_pages);
    size_t first = 0;
    for (int32_t b = 0; b < shape.num_seqs; ++b) {
      const size_t row_pages = static_cast<size_t>(PagesOf(shape, b).raw());
      steps_.push_back({.q_len = shape.q_len,
                        .kv_len = LengthOf(shape, b),
                        .pages = std::span(pages_).subspan(first, row_pages),
                        .tree_parents = shape.tree_parents});
      first += row_pages;
    }
    capacity_ = CapacityOf(steps_, shape.page_size, PageCount(num_pages + 1));
  }
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;

  std::span<const SequenceStep> steps() const { return steps_; }
  const StepCapacity& capacity() const { return capacity_; }  // the least one

 private:
  static TokenCount LengthOf(const SequenceShape& shape, int32_t seq) {
    if (!shape.lengths.empty()) return TokenCount(shape.lengths[static_cast<size_t>(seq)]);
    if (!shape.is_mixed) return shape.kv_len;
    const uint64_t bits = testing::SplitMix64(static_cast<uint64_t>(seq) + 1);
    const double share = static_cast<double>(bits >> 11) * 0x1p-53;
    const double length = std::exp(share * std::log(static_cast<double>(shape.kv_len.raw())));
    return Max(shape.q_len, TokenCount(static_cast<int64_t>(length)));
  }
  static PageCount PagesOf(const SequenceShape& shape, int32_t seq) {
    return shape.page_size.PagesFor(LengthOf(shape, seq) + shape.room);
  }

  std::vector<PageId> pages_;
  std::vector<SequenceStep> steps_;
  StepCapacity capacity_;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SEQUENCES_H_
