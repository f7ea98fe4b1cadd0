// The device that a thread uses: the first that CUDA shows the process (CUDA_VISIBLE_DEVICES chooses), unless
// it has chosen another one.
#ifndef QUIRE_DEVICE_CUDA_DEVICE_H_
#define QUIRE_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/units.h"

namespace quire::cuda {

struct DeviceProperties {
  std::string name;
  int capability_major = 0, capability_minor = 0;  // 9.0 is Hopper
  int num_sms = 0;                                 // streaming multiprocessors
  ByteOffset memory{};                             // in all
  ByteOffset l2_cache{};
  ByteOffset cta_shared_memory{};  // the most that a CTA can ask for
  std::array<std::byte, 16> uuid{};
};

// Throws DeviceError if there is no device, and Error(kInvalidArgument) as RequireHopper.
DeviceProperties QueryDevice();

// Throws Error(kInvalidArgument), naming the device and what it can do, unless its compute capability
// is 9.0: the kernels are compiled for sm_90a, which no other device runs, not even a newer one.
void RequireHopper(const DeviceProperties& device);

// How many devices CUDA shows the process; 0 where it cannot say.
int32_t NumDevices();
// The calling thread's.
int32_t CurrentDevice();
// What the calling thread does with CUDA from now on is of that device.
void UseDevice(int32_t number);

// Why QueryDevice() would throw; empty if it would not.
std::string DeviceProblem();
inline bool HaveDevice() { return DeviceProblem().empty(); }

// What is free on the device now, for all its processes.
ByteOffset FreeDeviceMemory();

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_DEVICE_H_
