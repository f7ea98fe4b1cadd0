// Slow references in double precision, written from the formulas and not from the kernels.
#ifndef QUIRE_TESTING_REFERENCE_H_
#define QUIRE_TESTING_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "attn/kv_store.h"
#include "attn/sequence_step.h"
#include "base/units.h"

namespace quire::testing {

// Half the distance from 1 to the next float.
inline constexpr double kUnitRoundoff = 0x1p-24;

// The byte offset, in a pool, of element `d` of the row at `slot` of an index-key store, and of its
// scale: the formulas of docs/formats.md.
int64_t IndexKeyOffset(Slot slot, int64_t d, PageSize page_size, int64_t dim, bool preshuffled);
int64_t IndexScaleOffset(Slot slot, PageSize page_size, int64_t dim);

// The row at `slot` as the bytes of the pool say, for any format. `pool` is the store's memory.
std::vector<double> ReferenceRow(std::span<const std::byte> pool, const KvLayout& layout,
                                 Slot slot);

struct ReferenceAttention {
  std::vector<double> out;        // [num_tokens, num_heads, value_dim]
  std::vector<double> lse;        // [num_tokens, num_heads]
  std::vector<double> out_bound;  // the error f32 arithmetic may make (docs/numerics.md)
  std::vector<double> lse_bound;
};

// The positions that query j of `seq` sees, in the order in which they are summed.
std::vector<int64_t> VisiblePositions(const SequenceStep& seq, int64_t j);

struct ReferenceQuery {
  std::span<const float> q;                     // one head's query
  std::vector<std::span<const double>> keys;    // dot with q
  std::vector<std::span<const double>> values;  // summed
  double scale = 1;
  // Errors already in the keys and values, where they were computed and not read.
  double score_slack = 0;  // of any score, scale included
  double value_slack = 0;  // of any value
};

// Appends one row to `to`.
void AppendReferenceRow(const ReferenceQuery& query, size_t value_dim, ReferenceAttention& to);

// Latent attention of a step. rows[b][p] is the row at position p of sequence b.
ReferenceAttention ReferenceMla(std::span<const SequenceStep> seqs,
                                const std::vector<std::vector<std::vector<double>>>& rows,
                                std::span<const float> q, int64_t num_heads, KvDims dims,
                                double scale);

struct MultiHeadShape {
  int64_t num_heads = 1;
  int64_t nope_dim = 128;
  int64_t value_dim = 128;
  KvDims dims;
};

// Multi-head attention of a causal step, keys and values expanded from the rows by w_kv_b
// [num_heads * (nope_dim + value_dim), latent_dim].
ReferenceAttention ReferenceMha(std::span<const SequenceStep> seqs,
                                const std::vector<std::vector<std::vector<double>>>& rows,
                                std::span<const float> q, std::span<const float> w_kv_b,
                                const MultiHeadShape& shape, double scale);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_REFERENCE_H_
