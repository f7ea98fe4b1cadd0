// A kernel before another one in a stream that overlaps, for tests: it writes late.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_LATE_ROWS_H_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_LATE_ROWS_H_

#include <cstddef>
#include <span>

#include "device/cuda/stream.h"

namespace quire::cuda {

// From one place in the device's memory to another.
struct LateRow {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};

// Takes its turn, so that the next kernel may begin, and copies these rows some time after that: late enough for the next
// one to have done what it does before its own turn. `rows` lie on the device.
void CopyLate(std::span<const LateRow> rows, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_LATE_ROWS_H_
