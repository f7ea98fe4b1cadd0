// Other engines' kernels, slowly and in double: attention that knows nothing but exported arrays.
//
// Each reads its index arrays, KV rows by slot, and queries, and throws std::out_of_range with the
// array's name for any index outside it. A query that sees no key gives output 0 and lse -inf.
#ifndef QUIRE_TESTING_EXPORT_KERNELS_H_
#define QUIRE_TESTING_EXPORT_KERNELS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "interop/export.h"
#include "interop/prefill_plan.h"

namespace quire::testing {

// The queries and KV rows of a step. Key and query have values_per_row values; the value part of a
// key is its first latent_dim.
struct AttentionInputs {
  std::span<const float> rows;     // [num_slots, values_per_row]
  std::span<const float> queries;  // [num_tokens, num_heads, values_per_row]
  int num_heads = 1;
  int values_per_row = 1;
  int latent_dim = 1;
  double scale = 1.0;

  int64_t num_tokens() const;
};

struct AttentionOutput {
  std::vector<double> out;  // [num_tokens, num_heads, latent_dim]
  std::vector<double> lse;  // [num_tokens, num_heads], natural logarithm
};

// Which of a sequence's keys its queries see.
enum class KeyMask {
  kCausal,  // query j of q_len: the first kv_len - q_len + j + 1
  kFull,    // all
};

// Query tokens qo_indptr[b] .. qo_indptr[b + 1] attend to slots kv_indices[kv_indptr[b] ..).
// Also a draft step: its rows are sequences of one query.
AttentionOutput FlatIndexAttention(const AttentionInputs& inputs,
                                   std::span<const int32_t> qo_indptr,
                                   std::span<const int32_t> kv_indptr,
                                   std::span<const int32_t> kv_indices, KeyMask mask);

// A padded table as a kernel is given it.
struct TableView {
  std::span<const int32_t> table;    // [rows, width]
  std::span<const int32_t> kv_lens;  // [rows]
  int64_t width = 0;
  PageSize page_size{64};
};
AttentionOutput BlockTableAttention(const AttentionInputs& inputs,
                                    std::span<const int32_t> qo_indptr, const TableView& table,
                                    KeyMask mask);

// Two attentions of the same queries over disjoint keys, as one.
AttentionOutput MergeByLse(const AttentionOutput& a, const AttentionOutput& b);

// Stage one runs the works worker by worker, stage two merges the groups. Throws std::logic_error
// if a query head is written twice or never.
AttentionOutput PrefillAttention(const AttentionInputs& inputs,
                                 const PrefillPlan<TokenBlocks>& plan,
                                 std::span<const int32_t> kv_indices);
AttentionOutput PrefillAttention(const AttentionInputs& inputs, const PrefillPlan<PageBlocks>& plan,
                                 std::span<const int32_t> kv_pages, PageSize page_size);

// ---- Steps to export ----

struct RowLengths {
  int64_t q_len = 1;
  int64_t kv_len = 0;
  int64_t room = 0;  // tokens behind kv_len that the page list has pages for
};

// Sequences with scattered pages of a pool with pages to spare, and the least capacity for them.
struct ScatteredBatch {
  ScatteredBatch(PageSize page_size, std::span<const RowLengths> rows, uint32_t seed);
  ScatteredBatch(const ScatteredBatch&) = delete;
  ScatteredBatch& operator=(const ScatteredBatch&) = delete;

  Slot SlotAt(size_t seq, int64_t position) const;

  std::vector<std::vector<PageId>> pages;
  std::vector<SequenceStep> seqs;
  StepCapacity capacity;
};

// A key by name: what its values depend on. Where it is stored is the batch's business.
struct KeyName {
  size_t seq = 0;
  int64_t position = 0;
};

// Of NamedAttention::Expected and the other attentions: double sums of at most a thousand terms.
inline constexpr double kNamedTolerance = 1e-12;

// Keys and queries with values that differ by name.
class NamedAttention {
 public:
  // Rows of NaN for every slot of the batch's pool.
  NamedAttention(const ScatteredBatch& batch, int64_t num_tokens, int num_heads);

  void Store(const KeyName& key, Slot slot);
  void StoreAll(const ScatteredBatch& batch);  // positions below kv_len at their own slots

  AttentionInputs inputs() const;
  // Token i over keys[i], in that order, without any index array.
  AttentionOutput Expected(std::span<const std::vector<KeyName>> keys) const;

 private:
  int num_heads_;
  std::vector<float> rows_;
  std::vector<float> queries_;
};

// The keys that each query token of a causal step sees.
std::vector<std::vector<KeyName>> CausalKeys(std::span<const SequenceStep> seqs);

// The largest difference of two results, relative where they are large; infinity where only one of
// them is finite, or the sizes differ.
double Difference(const AttentionOutput& a, const AttentionOutput& b);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_EXPORT_KERNELS_H_
