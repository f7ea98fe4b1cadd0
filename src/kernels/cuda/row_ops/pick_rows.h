// Rows of the residual stream that are wanted, one behind the other.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_H_
#define QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_H_

#include "device/cuda/cuda.h"
#include "kernels/ops.h"

namespace quire::cuda {

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const PickRowsArgs& args);

// Launches and returns.
void PickRows(const PickRowsArgs& args, const Stream& stream, StatusWord status = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_PICK_ROWS_H_
