// How keys come to shared memory by the copy engine: what a kernel is told of it.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_

#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

// Boxes of a page's rows, of 64 keys at most. None where keys of a list are read, which lie apart.
inline KeyBoxes KeyBoxesOf(const StoreView& store, const KeyLists& lists) {
  KeyBoxes boxes{};
  if (lists.chosen != nullptr) return boxes;
  // Rows of a box are counted in 32 bits.
  if (store.num_slots > INT32_MAX) return boxes;
  for (int32_t rows : {64, 32, 16}) {
    if (store.page_size % rows != 0) continue;
    // A panel's values of all keys are a matrix. Panels of whole tiles follow each other in shared memory too.
    boxes.rows = rows;
    boxes.panels = rows == kTileKeys ? kPartPanels : 1;
    boxes.map = MakeTensorMap({.data = store.memory,
                               .rows = store.num_slots,
                               .columns = kPanelValues,
                               .row_bytes = store.parts[0].row_stride,
                               .box_rows = rows,
                               .box_columns = kPanelValues,
                               .matrices = kPanels,
                               .matrix_bytes = 2 * kPanelValues,
                               .box_matrices = static_cast<int32_t>(boxes.panels)});
    break;
  }
  return boxes;
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_
