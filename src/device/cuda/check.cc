#include "device/cuda/check.h"

#include "base/error.h"

namespace quire::cuda {
namespace {

[[noreturn]] void ThrowDeviceError(cudaError_t status, const char* what) {
  const bool lost = IsSticky(status);
  throw DeviceError(
      lost ? DeviceError::Lasts::kForever : DeviceError::Lasts::kOnce,
      fmt::format("{}: {} ({}){}", what, cudaGetErrorString(status), cudaGetErrorName(status),
                  lost ? "; this process cannot use the device any more" : ""));
}

}  // namespace

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  ThrowDeviceError(status, what);
}

bool IsSticky(cudaError_t status) {
  switch (status) {
    // Those of which CUDA's reference says that "to continue using CUDA, the process must be
    // terminated and relaunched",
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    // what a driver says that has lost the device,
    case cudaErrorUnknown:
    // and those after which memory holds anything.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace quire::cuda
