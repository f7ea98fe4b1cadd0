// A step over a paged store with made-up contents, for tests and benchmarks.
//
// Contents depend on (sequence seed, position) alone, so the same sequences at another page size,
// in another order or in other chunks hold the same numbers. Pages are dealt at random; every byte
// of the pool that belongs to no token is NaN (0xff).
#ifndef QUIRE_TESTING_PAGED_BATCH_H_
#define QUIRE_TESTING_PAGED_BATCH_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/faults.h"
#include "device/buffer.h"
#include "testing/reference.h"

namespace quire::testing {

struct SequenceCase {
  int64_t q_len = 1;
  int64_t kv_len = 1;
  std::vector<int32_t> parents = {};
  uint64_t seed = 1;
  // Where set, position p holds what position contents[p] of the same seed would: a tree's path
  // laid out as a plain sequence, for instance.
  std::vector<int64_t> contents = {};

  int64_t ContentAt(int64_t position) const {
    return contents.empty() ? position : contents[static_cast<size_t>(position)];
  }
};

// n reproducible floats of about unit size for one (seed, position).
std::vector<float> MadeUpValues(uint64_t seed, int64_t position, int64_t n);

struct PagedBatchShape {
  PageSize page_size{64};
  KvFormat format = KvFormat::kLatentBf16;
  KvDims dims = {};
  int32_t num_heads = 1;
  uint64_t page_seed = 1;          // how pages are dealt
  int64_t spare_pages = 3;         // unused pages in the pool, besides the scratch page
  float q_size = 1, row_size = 1;  // what made-up queries and rows are multiplied with
};

class PagedBatch {
 public:
  PagedBatch(std::vector<SequenceCase> cases, const PagedBatchShape& shape, Faults faults = {});

  const PagedBatchShape& shape() const { return shape_; }
  const KvStore& store() const { return store_; }
  std::span<std::byte> pool() const { return memory_.bytes(); }
  std::span<const SequenceStep> seqs() const { return seqs_; }
  std::span<const float> q() const { return q_; }          // [tokens, heads, values]
  std::span<const float> gates() const { return gates_; }  // [tokens, heads], of an indexer
  int64_t num_tokens() const { return num_tokens_; }
  PageCount pool_pages() const { return store_.num_pages(); }
  Slot SlotAt(size_t seq, int64_t position) const;
  StepCapacity Capacity() const { return CapacityOf(seqs_, shape_.page_size, pool_pages()); }

  // rows()[b][p]: what the store holds at position p of sequence b, read by the reference.
  std::vector<std::vector<std::vector<double>>> Rows() const;

 private:
  void WriteRows();

  PagedBatchShape shape_;
  std::vector<SequenceCase> cases_;
  std::vector<std::vector<PageId>> pages_;
  Buffer memory_;
  KvStore store_;
  std::vector<SequenceStep> seqs_;
  std::vector<float> q_, gates_;
  int64_t num_tokens_ = 0;
};

struct AttentionResult {
  std::vector<float> out;  // [tokens, heads, latent_dim]
  std::vector<float> lse;  // [tokens, heads]
};

// Empty if all bits are the same; otherwise what differs first.
std::string BitMismatch(const AttentionResult& actual, const AttentionResult& expected);

inline constexpr float kScale = 0.07f;  // close to 192^-0.5, the scale of the models

struct MlaRun {
  float scale = kScale;
  int32_t num_workers = 1;
  // Where set, fixed capacity and work shape instead of the batch's own.
  const StepCapacity* capacity = nullptr;
  const WorkShape* work = nullptr;
  Faults faults = {};
};

// Plans and runs cpu::MlaAttention with guards behind every output; throws if one is damaged.
AttentionResult RunMla(const PagedBatch& batch, const MlaRun& run, Executor& executor);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_PAGED_BATCH_H_
