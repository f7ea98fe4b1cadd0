// What local ranks copy from each other, and how rows are packed for NCCL.
#ifndef QUIRE_DEVICE_CUDA_GATHER_COLUMNS_H_
#define QUIRE_DEVICE_CUDA_GATHER_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/stream.h"

namespace quire::cuda {

// Columns of rows, in bytes: copied from one place to another.
struct ColumnCopy {
  const std::byte* from = nullptr;
  int64_t from_stride = 0;  // from row to row
  std::byte* to = nullptr;
  int64_t to_stride = 0;
  int64_t width = 0;  // of a row; an even number, and so are addresses and strides
};

inline constexpr size_t kMaxColumnCopies = 16;

// Who wrote what is copied: kernels of the stream, or the host, in pinned memory, before the call.
enum class WrittenBy { kKernels, kHost };

// Copies `num_rows` rows of each; one launch for every kMaxColumnCopies.
void CopyColumns(std::span<const ColumnCopy> copies, int64_t num_rows, WrittenBy by,
                 const Stream& stream);

// words[i] |= others[r][i] of all r. The others may do the same at once, to their own words with these: a
// word is 0 or the same everywhere, so whoever comes first finds what it needs.
void OrWords(std::span<uint32_t> words, std::span<std::byte* const> others, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_GATHER_COLUMNS_H_
