// The emulated GPU's cuBLASLt is a header: there is nothing to open.
#include "kernels/cuda/gemm/cublas_lt.h"

namespace quire::cuda {

const CublasLt& CublasLt::Get() {
  static const CublasLt calls = {.create = cublasLtCreate,
                                 .destroy = cublasLtDestroy,
                                 .status_name = cublasLtGetStatusName,
                                 .status_text = cublasLtGetStatusString,
                                 .create_layout = cublasLtMatrixLayoutCreate,
                                 .destroy_layout = cublasLtMatrixLayoutDestroy,
                                 .set_layout = cublasLtMatrixLayoutSetAttribute,
                                 .create_product = cublasLtMatmulDescCreate,
                                 .destroy_product = cublasLtMatmulDescDestroy,
                                 .set_product = cublasLtMatmulDescSetAttribute,
                                 .create_preference = cublasLtMatmulPreferenceCreate,
                                 .destroy_preference = cublasLtMatmulPreferenceDestroy,
                                 .set_preference = cublasLtMatmulPreferenceSetAttribute,
                                 .choose = cublasLtMatmulAlgoGetHeuristic,
                                 .multiply = cublasLtMatmul};
  return calls;
}

}  // namespace quire::cuda
