#include "kernels/cuda/gemm/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "base/error.h"

namespace quire::cuda {
namespace {

// The system's, or else the one that Quire was built beside. Its functions are the same throughout a major version.
std::vector<std::string> Places() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  return {name, QUIRE_CUDA_LIBRARIES "/" + name};
}

}  // namespace

const CublasLt& CublasLt::Get() {
  static const CublasLt calls = Open(Places());
  return calls;
}

CublasLt CublasLt::Open(std::span<const std::string> places) {
  void* library = nullptr;
  std::string opened, problems;
  for (const std::string& place : places) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    opened = place;
    if (library != nullptr) break;
    problems += (problems.empty() ? "" : "; ") + std::string(dlerror());
  }
  Require(library != nullptr,
          "cuBLASLt: expected {}, which comes with CUDA {}'s libcublas (without it --deterministic "
          "multiplies, and a GPU's roofs are not measured), got: {}",
          places.front(), CUBLAS_VER_MAJOR, problems);
  CublasLt calls;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    Require(function != nullptr, "cuBLASLt: expected {} to have {}, got none", opened, name);
  };
  find("cublasLtCreate", calls.create);
  find("cublasLtDestroy", calls.destroy);
  find("cublasLtGetStatusName", calls.status_name);
  find("cublasLtGetStatusString", calls.status_text);
  find("cublasLtMatrixLayoutCreate", calls.create_layout);
  find("cublasLtMatrixLayoutDestroy", calls.destroy_layout);
  find("cublasLtMatrixLayoutSetAttribute", calls.set_layout);
  find("cublasLtMatmulDescCreate", calls.create_product);
  find("cublasLtMatmulDescDestroy", calls.destroy_product);
  find("cublasLtMatmulDescSetAttribute", calls.set_product);
  find("cublasLtMatmulPreferenceCreate", calls.create_preference);
  find("cublasLtMatmulPreferenceDestroy", calls.destroy_preference);
  find("cublasLtMatmulPreferenceSetAttribute", calls.set_preference);
  find("cublasLtMatmulAlgoGetHeuristic", calls.choose);
  find("cublasLtMatmul", calls.multiply);
  return calls;
}

}  // namespace quire::cuda
