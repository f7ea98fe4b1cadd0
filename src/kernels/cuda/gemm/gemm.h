// Matrix products on the GPU.
//
//   y[t, n] = sum_k x[t, k] w[n, k] + bias[n]
//
// x is bf16, or e4m3 with scales (QuantiseRows); w is bf16, or e4m3 with one f32 scale per 128 x 128
// block, row-major as files hold it; sums are f32; y is bf16 or f32 (the logits). docs/numerics.md
// derives the errors.
//
// Five ways to compute it. The tile kernel (Gemm) takes every shape and stride, and an element has the
// same bits in any batch: order of summation in kernels/cuda/gemm/gemm_tile.h. cuBLASLt, through a
// GemmPlanner (kernels/cuda/gemm/gemm_planner.h), is faster for many rows, and its bits are the same for
// the same number of rows only. Few rows go to Gemv (kernels/cuda/gemm/gemv.h) there, and
// 17 to 64 rows to BoxedGemm (kernels/cuda/gemm/gemm_boxed.h), which has the tile kernel's bits if told its ranges. Where
// those are asked for, a row or two are StripGemm's (kernels/cuda/gemm/gemm_strips.h).
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/gemm.h"
#include "kernels/quantised_rows.h"

namespace quire::cuda {

// `count` matrices of one shape in device memory, at equal distances: one projection, the heads of
// an absorbed one, the experts of a layer.
struct WeightView {
  WeightFormat format = WeightFormat::kBf16;  // kBf16 or kFp8Block
  MatrixShape shape = {};
  int64_t count = 1;
  const std::byte* data = nullptr;
  int64_t row_stride = 0;     // elements from one output to the next
  int64_t matrix_stride = 0;  // elements from one matrix to the next
  // kFp8Block only: scales[ceil(outputs / 128), ceil(inputs / 128)] of each matrix.
  const float* scales = nullptr;
  int64_t scale_stride = 0;         // from one row of blocks to the next
  int64_t scale_matrix_stride = 0;  // from one matrix to the next
  // Of the matrix that this is a part of, whose bits it is to give; 0: it is all.
  int64_t whole_outputs = 0;

  bool empty() const { return data == nullptr; }
};

// Views of contiguous matrices.
WeightView DenseWeights(const Bf16* data, MatrixShape shape, int64_t count = 1);
WeightView Fp8Weights(const Fp8E4m3* data, const float* scales, MatrixShape shape,
                      int64_t count = 1);

// code = e4m3(x / scale), scale = max |x| / 448 of its 128 inputs. Zeros have scale 0.
struct QuantiseRowsArgs {
  ConstTensorView x = {};  // [rows, inputs] bf16, any row stride
  QuantisedRows to = {};
};
void Validate(const QuantiseRowsArgs& args);
void QuantiseRows(const QuantiseRowsArgs& args, const Stream& stream);

struct GemmArgs {
  // [rows, inputs] bf16, any row stride. With w.count > 1 it is the first product's, and the next
  // one's begins x_step elements on: heads are columns of wider rows.
  ConstTensorView x = {};
  // Instead of x, with kFp8Block weights and w.count of 1: e4m3 products. With x, the codes of w are
  // widened to bf16.
  QuantisedRows x_codes = {};
  WeightView w = {};
  // Empty, or as w, of count 1 and without a bias: w is gate, and y = silu(x w^T) * (x up^T). For BoxedGemm, and for
  // Gemm where GemmTakesGate.
  WeightView up = {};
  TensorView y = {};  // [rows, outputs] bf16 or f32, any row stride; overlaps no x
  int64_t x_step = 0;
  int64_t y_step = 0;
  const float* bias = nullptr;  // [outputs], or null; w.count of 1 only
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const GemmArgs& args);

// How many ranges Gemm cuts the inputs into: of a part of a matrix as many as of the whole.
int32_t GemmRanges(const GemmArgs& args);
// Whether gate and up are such that every number of rows has them with their activation, by kernels that sum as Gemm
// does: bf16, every row of x and w on a multiple of 16 bytes. The number of rows decides nothing here.
bool GemmTakesGate(const GemmArgs& args);

// The products by the tile kernel, in the tile of ChooseTile, which is given `size`. Up to 64 rows of gate and up must
// have one range.
void Gemm(const GemmArgs& args, const Stream& stream, std::optional<TileSize> size = {});

// What the op must read and write, and compute, for benchmarks.
ByteOffset GemmBytes(const GemmArgs& args);
double GemmFlops(const GemmArgs& args);

// Of a view, in bytes, matrices with their scales.
ByteOffset WeightViewBytes(const WeightView& w);

// For the ops that launch tiles: checks of weights, and the parts of params that views say.
void RequireWeights(const char* name, const WeightView& w);
void RequireSameWeights(const WeightView& up, const WeightView& gate);
// x or its codes have `rows` rows and fit w.
void RequireX(const ConstTensorView& x, const QuantisedRows& x_codes, int64_t rows,
              const WeightView& w);
// y is [rows, outputs]: returns the rows.
int64_t RequireY(const TensorView& y, const WeightView& w);
TileParams MakeTileParams(const ConstTensorView& x, const QuantisedRows& x_codes,
                          const WeightView& w, const TensorView& y);
// Of a dense product, cut into GemmRanges.
TileParams MakeTileParams(const GemmArgs& args);
// The instance of the tile kernel for params made of these operands and then completed. A matrix of w
// multiplies `rows` rows, on average; `size`, if given, is taken instead of the one that suits them.
// Neither changes a bit of y. Where the loads are unaligned there is the medium tile alone.
TileChoice ChooseTile(const TileParams& params, const QuantisedRows& x_codes, const WeightView& w,
                      int64_t rows, std::optional<TileSize> size = {});
// The large tile of codes: its width by the rounds that 132 CTAs take, a pair by experts, ranges and rows.
// params.num_splits is set.
TileSize LargeTileOfCodes(const TileParams& params, int64_t rows);
// A view's first element, whatever its type.
const std::byte* FirstByte(const ConstTensorView& view);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_H_
