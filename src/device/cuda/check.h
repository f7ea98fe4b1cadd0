// What CUDA's calls answer.
#ifndef QUIRE_DEVICE_CUDA_CHECK_H_
#define QUIRE_DEVICE_CUDA_CHECK_H_

#include <cuda_runtime_api.h>

namespace quire::cuda {

// Throws DeviceError with `what` and CUDA's name and words for `status`, unless that is success. The
// runtime's own note of the error is cleared.
void Check(cudaError_t status, const char* what);

// Whether `status` means that the device's context is lost: every later call of the process fails
// with it, and only a new process can use the device again.
bool IsSticky(cudaError_t status);

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_CHECK_H_
