// The ops of sparse attention over made-up batches (testing/paged_batch.h), for tests.
#ifndef QUIRE_TESTING_SPARSE_BATCH_H_
#define QUIRE_TESTING_SPARSE_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/executor.h"
#include "kernels/select_keys.h"
#include "testing/paged_batch.h"

namespace quire::testing {

struct SelectRun {
  int32_t top_k = 1;
  int32_t init_tokens = 0;
  int32_t local_tokens = 0;
  float scale = 1.0f;
  int32_t num_workers = 1;
  int64_t query_tile = 4;
};

// The indexer's shape of a batch of index keys.
IndexShape IndexShapeOf(const PagedBatch& batch, const SelectRun& run);

// Plans and runs cpu::SelectKeys with guards behind what it writes; throws if one is damaged.
// Returns [tokens, top_k].
std::vector<int32_t> RunSelect(const PagedBatch& batch, const SelectRun& run, Executor& executor);

// The same of cpu::SparseAttention over a batch of latent rows; chosen is [tokens, top_k].
AttentionResult RunSparse(const PagedBatch& batch, std::span<const int32_t> chosen, int32_t top_k,
                          int32_t num_workers, Executor& executor);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_SPARSE_BATCH_H_
