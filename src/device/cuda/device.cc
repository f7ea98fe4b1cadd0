#include "device/cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>

#include "base/error.h"
#include "device/cuda/check.h"

namespace quire::cuda {

DeviceProperties QueryDevice() {
  int count = 0;
  Check(cudaGetDeviceCount(&count), "looking for a CUDA device");
  if (count == 0) throw DeviceError(DeviceError::Lasts::kOnce, "there is no CUDA device");
  cudaDeviceProp found{};
  Check(cudaGetDeviceProperties(&found, CurrentDevice()), "cudaGetDeviceProperties");
  DeviceProperties device{.name = found.name,
                          .capability_major = found.major,
                          .capability_minor = found.minor,
                          .num_sms = found.multiProcessorCount,
                          .memory = ByteOffset(found.totalGlobalMem),
                          .l2_cache = ByteOffset(found.l2CacheSize),
                          .cta_shared_memory = ByteOffset(found.sharedMemPerBlockOptin)};
  static_assert(sizeof(device.uuid) == sizeof(found.uuid));
  std::memcpy(device.uuid.data(), &found.uuid, sizeof(found.uuid));
  RequireHopper(device);
  return device;
}

void RequireHopper(const DeviceProperties& device) {
  Require(device.capability_major == 9 && device.capability_minor == 0,
          "device '{}': expected compute capability 9.0 (Hopper: H100, H200), got {}.{}",
          device.name, device.capability_major, device.capability_minor);
}

int32_t NumDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

int32_t CurrentDevice() {
  int current = 0;
  Check(cudaGetDevice(&current), "cudaGetDevice");
  return current;
}

void UseDevice(int32_t number) { Check(cudaSetDevice(number), "choosing a CUDA device"); }

std::string DeviceProblem() {
  try {
    QueryDevice();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

ByteOffset FreeDeviceMemory() {
  size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return ByteOffset(free);
}

}  // namespace quire::cuda
