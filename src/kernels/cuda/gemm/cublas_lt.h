// cuBLASLt, opened when a product first needs it.
//
// It is half a gigabyte with a third of a million addresses to be put right when it is loaded, which takes a tenth of a
// second and 200 MiB. A program that was linked with it would pay that for `--help`, and would not start at all
// on a machine without CUDA's libraries.
#ifndef QUIRE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_
#define QUIRE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_

#include <cublasLt.h>

#include <span>
#include <string>

namespace quire::cuda {

// What Quire calls of it.
struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetStatusString) status_text = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;

  // Opened once, and for good. Throws Error, with the way to get it, where it is not to be had.
  static const CublasLt& Get();

  // From the first of `places` that can be opened; a name without a folder is looked for as the system does.
  static CublasLt Open(std::span<const std::string> places);
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_CUBLAS_LT_H_
