// Rows of the residual stream that are wanted, one behind the other.
#ifndef QUIRE_MODEL_CUDA_PICK_ROWS_H_
#define QUIRE_MODEL_CUDA_PICK_ROWS_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

struct PickRowsArgs {
  ConstTensorView x = {};              // [num_tokens, width] f32
  std::span<const int32_t> rows = {};  // [num_rows]; one outside x is reported, and row 0 stands in
  TensorView y = {};                   // [num_rows, width] f32; not in x
  StatusWord status = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const PickRowsArgs& args);

// Launches and returns.
void PickRows(const PickRowsArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_MODEL_CUDA_PICK_ROWS_H_
