// The kernel behind QuantiseRows (kernels/cuda/gemm/gemm.h), and where it and others write codes.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_QUANTISE_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_QUANTISE_H_

#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/quantised_rows.h"

namespace quire::cuda {

// QuantisedRows as a kernel's argument, or none.
struct CodeRows {
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;  // a multiple of 16
  float* scales = nullptr;
  int64_t scale_stride = 0;
};

inline CodeRows CodeRowsOf(const QuantisedRows& rows) {
  return {.codes = reinterpret_cast<uint8_t*>(rows.codes),
          .code_stride = rows.code_stride,
          .scales = rows.scales,
          .scale_stride = rows.scale_stride};
}

// Device pointers of one launch; rows is at least 1.
struct QuantiseParams {
  const uint16_t* x = nullptr;  // bf16
  int64_t x_stride = 0;
  CodeRows to = {};
  int64_t rows = 0;
  int32_t inputs = 0;
  int32_t blocks = 0;  // of 128 inputs
};

void LaunchQuantise(const QuantiseParams& params, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_QUANTISE_H_
