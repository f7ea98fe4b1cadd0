// cuBLASLt of the emulated GPU: it knows no algorithm, so that the project's own kernels multiply.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_CUBLASLT_H_
#define QUIRE_TESTING_CUDA_EMULATOR_CUBLASLT_H_

#include <cuda_runtime_api.h>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cublasOperation_t { CUBLAS_OP_T = 1 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
};
enum cublasLtMatmulDescAttributes_t { CUBLASLT_MATMUL_DESC_TRANSA };
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
};
inline constexpr uint32_t CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2;

struct cublasLtContext {};
using cublasLtHandle_t = cublasLtContext*;
using cublasLtMatrixLayout_t = cublasLtContext*;
using cublasLtMatmulDesc_t = cublasLtContext*;
using cublasLtMatmulPreference_t = cublasLtContext*;
struct cublasLtMatmulAlgo_t {};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  cublasStatus_t state;
};

inline const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS"; }
inline const char* cublasLtGetStatusString(cublasStatus_t) {
  return "the emulated GPU has no algorithm";
}
inline cublasStatus_t QuireTake(cublasLtContext** made) {
  *made = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t QuireGiveBack(cublasLtContext* made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) { return QuireTake(made); }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t made) { return QuireGiveBack(made); }
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t,
                                                 uint64_t, uint64_t, int64_t) {
  return QuireTake(made);
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  return QuireGiveBack(made);
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t,
                                                       cublasLtMatrixLayoutAttribute_t, const void*,
                                                       size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t,
                                               cudaDataType_t) {
  return QuireTake(made);
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  return QuireGiveBack(made);
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t,
                                                     cublasLtMatmulDescAttributes_t, const void*,
                                                     size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return QuireTake(made);
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  return QuireGiveBack(made);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                           cublasLtMatmulPreferenceAttributes_t,
                                                           const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatmulPreference_t, int,
                                                     cublasLtMatmulHeuristicResult_t*, int* found) {
  *found = 0;
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*,
                                     const void*, cublasLtMatrixLayout_t, const void*,
                                     cublasLtMatrixLayout_t, const void*, const void*,
                                     cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t,
                                     const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

#endif  // QUIRE_TESTING_CUDA_EMULATOR_CUBLASLT_H_
