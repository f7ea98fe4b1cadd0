// How keys come to shared memory by the copy engine: what a kernel is told of it.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_

#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda::mla {

// Boxes of a page's rows, of 64 keys at most, and of a part's panels. None where keys of a list are read, which lie
// apart.
template <class Parts>
KeyBoxes KeyBoxesOf(const MlaKernelArgs& args, const KeyLists& lists) {
  const StoreView& store = args.store;
  KeyBoxes boxes{};
  if (lists.chosen != nullptr) return boxes;
  // Rows of a box are counted in 32 bits.
  if (store.num_slots > INT32_MAX) return boxes;
  for (int32_t rows : {64, 32, 16}) {
    if (store.page_size % rows != 0) continue;
    // A panel's values of all keys are a matrix. Panels of whole tiles follow each other in shared memory too.
    boxes.rows = rows;
    boxes.panels = rows == kTileKeys ? Parts::kPartPanels : 1;
    TensorMapShape shape = {.data = store.memory,
                            .rows = store.num_slots,
                            .columns = kPanelValues,
                            .row_bytes = store.parts[0].row_stride,
                            .box_rows = rows,
                            .box_columns = kPanelValues,
                            .matrices = kPanels,
                            .matrix_bytes = 2 * kPanelValues};
    boxes.one_panel = MakeTensorMap(shape);
    shape.box_matrices = static_cast<int32_t>(boxes.panels);
    boxes.map = MakeTensorMap(shape);
    break;
  }
  return boxes;
}

// What describes the boxes takes its time to come, too. All threads of a kernel call it.
__device__ inline void PrefetchKeyBoxes(const KeyBoxes& boxes) {
  if (threadIdx.x != kWarp || boxes.rows == 0) return;
  PrefetchTensorMap(&boxes.map);
  PrefetchTensorMap(&boxes.one_panel);
}

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_BOXES_CUH_
