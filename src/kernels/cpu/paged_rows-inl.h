// What attention kernels read, as floats: rows of pages and queries. Compiled once per SIMD target.
#if defined(QUIRE_KERNELS_CPU_PAGED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_PAGED_ROWS_INL_H_
#undef QUIRE_KERNELS_CPU_PAGED_ROWS_INL_H_
#else
#define QUIRE_KERNELS_CPU_PAGED_ROWS_INL_H_
#endif

#include <cstdint>

#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/row_codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// Decodes the p-th key that `query` of sequence `seq` sums, padded with zeros to key_columns.
HWY_INLINE void DecodeKey(const Sequences& plan, const KvStore& store, int32_t seq,
                          TokenCount query, TokenCount p, int64_t key_columns, RowTarget to) {
  const KvLayout& layout = store.read_layout();
  const TokenCount position = plan.KeyPosition(seq, query, p);
  const PageId page = plan.Row(seq)[plan.page_size.FullPages(position).raw()];
  DecodeRow(layout, store.Page(page), plan.page_size.OffsetOf(position), to);
  for (int32_t i = layout.dims().values(); i < key_columns; ++i) *to.At(i) = 0.0f;
}

// Transposes one head's query into column `to` of its block of rows, padded with zeros to dim.
HWY_INLINE void PackQuery(const ConstTensorView& q, int64_t token, int64_t head, int64_t dim,
                          float* to) {
  const int64_t num_values = q.dim(2);
  if (q.dtype() == DType::kF32) {
    const float* from = q.Row<float>(token, head);
    for (int64_t i = 0; i < num_values; ++i) to[i * kBlockRows] = from[i];
  } else {
    const Bf16* from = q.Row<Bf16>(token, head);
    for (int64_t i = 0; i < num_values; ++i) to[i * kBlockRows] = ToFloat(from[i]);
  }
  for (int64_t i = num_values; i < dim; ++i) to[i * kBlockRows] = 0.0f;
}

// A row of a block that is no query's.
HWY_INLINE void PackZeros(int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; ++i) to[i * kBlockRows] = 0.0f;
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
