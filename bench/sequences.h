// Equal sequences over scattered pages: the steps that are planned, exported and attended to.
#ifndef QUIRE_BENCH_SEQUENCES_H_
#define QUIRE_BENCH_SEQUENCES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/sequence_step.h"
#include "base/units.h"

namespace quire::bench {

struct SequenceShape {
  int32_t num_seqs = 1;
  TokenCount q_len{1};
  TokenCount kv_len{1};
  TokenCount room{0};  // tokens behind kv_len that the page lists have pages for
  PageSize page_size{64};
};

// Every page of the pool but the scratch page belongs to one sequence.
class Sequences {
 public:
  explicit Sequences(const SequenceShape& shape) {
    const PageCount row = shape.page_size.PagesFor(shape.kv_len + shape.room);
    const int64_t num_pages = (row * shape.num_seqs).raw();
    pages_.reserve(static_cast<size_t>(num_pages));
    // A prime as stride visits every page once, far from the one before, and takes a fraction of
    // the time that shuffling 33 million pages would.
    constexpr int64_t kStride = 2654435761;
    for (int64_t i = 0; i < num_pages; ++i) pages_.emplace_back(1 + i * kStride % num_pages);
    const size_t row_pages = static_cast<size_t>(row.raw());
    for (size_t b = 0; b < static_cast<size_t>(shape.num_seqs); ++b) {
      steps_.push_back({.q_len = shape.q_len,
                        .kv_len = shape.kv_len,
                        .pages = std::span(pages_).subspan(b * row_pages, row_pages)});
    }
    capacity_ = CapacityOf(steps_, shape.page_size, PageCount(num_pages + 1));
  }
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;

  std::span<const SequenceStep> steps() const { return steps_; }
  const StepCapacity& capacity() const { return capacity_; }  // the least one

 private:
  std::vector<PageId> pages_;
  std::vector<SequenceStep> steps_;
  StepCapacity capacity_;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SEQUENCES_H_
