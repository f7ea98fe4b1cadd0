// The kernel behind PickRows (kernels/cuda/row_ops/pick_rows.h).
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_LAUNCH_H_
#define QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda.h"

namespace quire::cuda {

// Device pointers of one launch; num_rows is at least 1. Strides and width are in elements.
struct PickRowsParams {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  int64_t num_tokens = 0;
  const int32_t* rows = nullptr;
  int64_t num_rows = 0;
  std::byte* y = nullptr;
  int64_t y_stride = 0;
  int64_t width = 0;
  int64_t element_bytes = 4;  // or 2
  StatusWord status = {};
};

void LaunchPickRows(const PickRowsParams& params, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_LAUNCH_H_
