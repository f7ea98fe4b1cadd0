#include "device/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/error.h"
#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's, found at run time: a program must start where there is no driver.
Encode FindEncode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result),
        "cuTensorMapEncodeTiled");
  Require(result == cudaDriverEntryPointSuccess, "the CUDA driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(found);
}

}  // namespace

CUtensorMap MakeTensorMap(const TensorMapShape& shape) {
  static const Encode encode = FindEncode();
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(shape.columns),
                              static_cast<cuuint64_t>(shape.rows),
                              static_cast<cuuint64_t>(shape.matrices)};
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(shape.row_bytes),
                                static_cast<cuuint64_t>(shape.matrix_bytes)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(shape.box_columns),
                             static_cast<cuuint32_t>(shape.box_rows),
                             static_cast<cuuint32_t>(shape.box_matrices)};
  const cuuint32_t step[3] = {1, 1, 1};
  CUtensorMap map;
  // No promotion: L2 that is asked for more of a row than a box has gives a tenth less.
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, shape.matrices == 0 ? 2 : 3,
      const_cast<std::byte*>(shape.data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      shape.box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  Require(
      result == CUDA_SUCCESS,
      "tensor map of {} x {} x {} with boxes of {} x {}: the CUDA driver refuses it with error {}",
      std::max<int64_t>(shape.matrices, 1), shape.rows, shape.columns, shape.box_rows,
      shape.box_columns, static_cast<int>(result));
  return map;
}

}  // namespace quire::cuda
