// What the copy engine is told of a matrix in device memory, to bring boxes of it to shared memory or to store them.
#ifndef QUIRE_DEVICE_CUDA_TENSOR_MAP_H_
#define QUIRE_DEVICE_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

// A matrix of 16-bit elements, or several at equal distances, and the boxes they are copied in. What of
// a box is not in a matrix becomes 0, and is not stored.
struct TensorMapShape {
  const std::byte* data = nullptr;  // on 16 bytes
  int64_t rows = 0, columns = 0;
  int64_t row_bytes = 0;  // from a row to the next, a multiple of 16
  int32_t box_rows = 0;
  // 32 or 64: a box's row has 64 or 128 bytes, whose chunks of 16 are permuted.
  int32_t box_columns = 0;
  int64_t matrices = 0;      // 0: one, and boxes are named without its number
  int64_t matrix_bytes = 0;  // from a matrix to the next, a multiple of 16
  int32_t box_matrices = 1;  // that follow each other, their boxes too
};

// Throws Error if the driver refuses.
CUtensorMap MakeTensorMap(const TensorMapShape& shape);

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_TENSOR_MAP_H_
