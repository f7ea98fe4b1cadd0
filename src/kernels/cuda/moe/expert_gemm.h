// The products of a layer's experts, each with the rows that chose it.
//
//   y[t, :] = x[t, :] w[e]^T                                     or, with `up`,
//   y[t, :] = silu(x[t, :] w[e]^T) * (x[t, :] up[e]^T)
//
// for the rows offsets[e] <= t < offsets[e + 1] of expert e. Rows are sorted by expert and the
// offsets are in device memory: the host does not know how many rows an expert has, and does not
// ask. The grid is the most that `rows` rows can need, and every CTA finds its expert and rows from
// the offsets, so one recorded graph serves all routings. With `rows`, x[rows[t], :] stands for
// x[t, :]: rows of x lie as they like, and several experts read the same one.
//
// Sums are those of the tile kernel (kernels/cuda/gemm/gemm_tile.h) with one range of inputs; silu and the
// product are f32, and y is rounded once. A row has the same bits beside any others, if it is to be `exact`:
// otherwise few rows of bf16 are summed by kernels/cuda/moe/expert_gemv.h in another order.
#ifndef QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_H_
#define QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_H_

#include <cstdint>
#include <optional>
#include <span>

#include "base/tensor_view.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/expert_gemv.h"

namespace quire::cuda {

struct ExpertGemmArgs {
  ConstTensorView x = {};  // [rows, inputs] bf16, any row stride; with `rows`, any number of rows
  QuantisedRows x_codes = {};  // instead of x, with kFp8Block weights: e4m3 products
  WeightView w = {};           // count is the number of experts, 1..kMaxExperts
  WeightView up = {};          // of the same shape, count, format and strides; or empty
  // [w.count + 1], ascending from 0, in device memory. Rows from the last offset on are padding:
  // their values reach no row of y, and their y is not written. An offset that descends or is past `rows` is
  // reported (kExpert, its index) and read as the nearest that is in order.
  const int32_t* offsets = nullptr;
  // Empty, or the row of x of every row of y, in device memory; read up to the last offset. One that
  // x does not have is reported (kExpert, the row of y) and read as row 0.
  std::span<const int32_t> rows = {};
  TensorView y = {};  // [rows, outputs] bf16 or f32, any row stride; overlaps no x
  StatusWord status = {};
  int64_t all_experts = 0;  // that rows were dealt to, of which w may be a rank's; 0: w's
  bool exact = true;        // false: y may depend on how many rows there are
  RoutingAge routing = RoutingAge::kNew;  // of offsets and rows
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const ExpertGemmArgs& args);

// What computes the products.
enum class ExpertKernel {
  kGemv,   // bf16 that need not be exact, where ExpertGemvTakes it
  kTiles,  // all others
};
// Looks at shapes, types and addresses alone, never at memory.
ExpertKernel ChooseExpertKernel(const ExpertGemmArgs& args);

// The rows that an expert has on average.
int64_t RowsOfAnExpert(const ExpertGemmArgs& args);

// The products by the kernel that is chosen; tiles are those of ChooseTile, which is given `size`, for
// RowsOfAnExpert. With a `size` they are tiles in any case.
void ExpertGemm(const ExpertGemmArgs& args, const Stream& stream,
                std::optional<TileSize> size = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_H_
