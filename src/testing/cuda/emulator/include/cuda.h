// CUDA's driver, as far as the project uses it, on the machine of testing/cuda/emulator.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_CUDA_H_
#define QUIRE_TESTING_CUDA_EMULATOR_CUDA_H_

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_NONE };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

// Up to three dimensions of 16-bit elements.
struct alignas(64) CUtensorMap {
  const std::byte* data;
  uint64_t size[3];
  uint64_t stride[3];  // in bytes, from an element to the next
  uint32_t box[3];
  CUtensorMapSwizzle swizzle;
};

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
inline constexpr unsigned long long cudaEnableDefault = 0;
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found,
                                                        unsigned version, unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* result);

#endif  // QUIRE_TESTING_CUDA_EMULATOR_CUDA_H_
