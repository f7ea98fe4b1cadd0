// Prints the CUDA device that tests run on. Ends with 77, which CTest shows as skipped, if there is
// none: then every test that needs one has skipped itself and passed.
#include <fmt/format.h>

#include <exception>

#include "device/cuda/cuda.h"

int main() {
  using namespace quire::cuda;
  try {
    const DeviceProperties device = QueryDevice();
    fmt::print("{}: {} SMs, {} bytes of memory, {} free\n", device.name, device.num_sms,
               device.memory.raw(), FreeDeviceMemory().raw());
    return 0;
  } catch (const std::exception& error) {
    fmt::print("no device to test on: {}\n", error.what());
    return 77;
  }
}
