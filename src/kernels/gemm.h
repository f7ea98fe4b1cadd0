// Matrix products with weights that were packed once.
//
//   y[t, n] = sum_k x[t, k] * w[n, k] + bias[n]
//
// Sums run over k ascending, each in its own lane, in f32 with fused multiply-adds; bias is added
// last. An element of y depends on its own row of x and its own row of w alone, not on the rows
// beside it, the number of threads, or the width of the vectors. x and y are f32; w is f32, f16,
// bf16, or e4m3 with one f32 scale per block. Of the last, products with the codes are summed over
// kChunkInputs inputs at a time, and each such sum is multiplied with its scale and added on.
#ifndef QUIRE_KERNELS_GEMM_H_
#define QUIRE_KERNELS_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"

namespace quire {

enum class WeightFormat { kF32, kF16, kBf16, kFp8Block };

const char* WeightFormatName(WeightFormat format);
// Of one element, without scales.
int64_t WeightBytes(WeightFormat format);

struct MatrixShape {
  int64_t outputs = 0;  // n
  int64_t inputs = 0;   // k
};

// A matrix as a file or a generator has it. Elements may be unaligned, and transposed or sliced by
// their strides. A kFp8Block matrix has scales[n / block_outputs, k / block_inputs], counted from
// the whole matrix that this one may be a slice of: element (n, k) is element (first_output + n,
// first_input + k) of it.
struct MatrixSource {
  WeightFormat format = WeightFormat::kF32;
  MatrixShape shape = {};
  const std::byte* data = nullptr;
  int64_t output_stride = 0;  // elements from (n, k) to (n + 1, k)
  int64_t input_stride = 1;   // elements from (n, k) to (n, k + 1)
  // kFp8Block only; f32, possibly unaligned.
  const std::byte* scales = nullptr;
  int64_t scale_stride = 0;        // scales from one row of blocks to the next
  int64_t scale_input_stride = 1;  // and from one block to the next along the inputs
  int32_t block_outputs = 128;
  int32_t block_inputs = 128;
  int64_t first_output = 0;
  int64_t first_input = 0;
};

// A view of packed weights; the memory belongs to the caller and outlives it.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  MatrixShape shape() const { return shape_; }
  WeightFormat format() const { return format_; }
  bool empty() const { return data_ == nullptr; }
  const std::byte* data() const { return data_; }

 private:
  friend PackedMatrix ViewPacked(MatrixShape, WeightFormat, std::span<const std::byte>);
  MatrixShape shape_;
  WeightFormat format_ = WeightFormat::kF32;
  const std::byte* data_ = nullptr;
};

// Packed, a matrix is panels of kPanelOutputs outputs, the last one padded with zeros. A panel is
// chunks of kChunkInputs inputs, the last one possibly shorter, and a chunk is
//
//   kFp8Block:  f32 scale[kPanelOutputs], then
//   for each input, the panel's outputs 0..31 as
//     kF32, kF16:  element 0, 1, .. 31
//     kBf16:       words of 32 bits: word i is output i in the lower half, 16 + i in the upper
//     kFp8Block:   words of 16 bits: word i is output i in the lower half, 16 + i in the upper
//
// so that halves become vectors by a shift or a mask, not by a shuffle. 32 outputs of bf16 are one
// cache line, and enough sums to keep one row of x at the speed of the memory.
inline constexpr int64_t kPanelOutputs = 32;
inline constexpr int64_t kChunkInputs = 128;
inline constexpr size_t kPackedAlignment = 64;

// Bytes of a chunk of `inputs` inputs, and of a panel of `inputs` inputs.
int64_t ChunkBytes(int64_t inputs, WeightFormat format);
int64_t PanelBytes(int64_t inputs, WeightFormat format);

// Bytes of a packed matrix: the elements, padding of the last panel and scales.
ByteOffset PackedBytes(MatrixShape shape, WeightFormat format);

// Memory of PackedBytes(shape, format) bytes, aligned to kPackedAlignment, as a matrix.
PackedMatrix ViewPacked(MatrixShape shape, WeightFormat format, std::span<const std::byte> memory);

// Throws Error(kInvalidArgument) unless `source` packs to `format`: its own, or kF32. A kFp8Block
// matrix keeps its format if no block boundary lies within a chunk of inputs.
void Validate(const MatrixSource& source, WeightFormat format);

struct MatmulArgs {
  ConstTensorView x = {};  // [num_rows, inputs] f32, any row stride
  PackedMatrix w = {};
  TensorView y = {};                 // [num_rows, outputs] f32, any row stride; overlaps no x
  std::span<const float> bias = {};  // [outputs], or empty
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const MatmulArgs& args);

// What the op must read and write, and compute, for benchmarks.
ByteOffset MatmulBytes(const MatmulArgs& args);
double MatmulFlops(const MatmulArgs& args);

}  // namespace quire

#endif  // QUIRE_KERNELS_GEMM_H_
