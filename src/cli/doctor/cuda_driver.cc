#include "cli/doctor/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace quire::cli {
namespace {

// Of NVIDIA's driver interface, which has not changed them since CUDA 4: 0 is success.
using Init = int (*)(unsigned flags);
using GetNumber = int (*)(int* number);
using GetDevice = int (*)(int* device, int ordinal);
using CanAccess = int (*)(int* can, int device, int other);
using GetName = int (*)(char* name, int length, int device);

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <class Function>
Function Find(const Library& library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library.get(), name));
}

std::vector<std::string> DeviceNames(const Library& library, int count) {
  const auto get_device = Find<GetDevice>(library, "cuDeviceGet");
  const auto get_name = Find<GetName>(library, "cuDeviceGetName");
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    int device = 0;
    char name[256] = "";
    const bool known = get_device != nullptr && get_name != nullptr &&
                       get_device(&device, i) == 0 && get_name(name, sizeof(name) - 1, device) == 0;
    names.emplace_back(known ? name : "unknown");
  }
  return names;
}

int32_t CountPeers(const Library& library, int count) {
  const auto get_device = Find<GetDevice>(library, "cuDeviceGet");
  const auto can_access = Find<CanAccess>(library, "cuDeviceCanAccessPeer");
  if (get_device == nullptr || can_access == nullptr) return 0;
  int32_t peers = 0;
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      int device = 0, other = 0, can = 0;
      peers += from != to && get_device(&device, from) == 0 && get_device(&other, to) == 0 &&
               can_access(&can, device, other) == 0 && can != 0;
    }
  }
  return peers;
}

}  // namespace

CudaDriver AskCudaDriver() {
  const Library library(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
  if (library == nullptr) return {.problem = "no driver (libcuda.so.1)"};
  const auto init = Find<Init>(library, "cuInit");
  const auto get_version = Find<GetNumber>(library, "cuDriverGetVersion");
  const auto get_count = Find<GetNumber>(library, "cuDeviceGetCount");
  if (init == nullptr || get_version == nullptr || get_count == nullptr) {
    return {.problem = "libcuda.so.1 is not a CUDA driver"};
  }
  if (const int error = init(0); error != 0) {
    return {.problem = fmt::format("the driver does not start: cuInit returned {}", error)};
  }
  CudaDriver driver;
  int version = 0, count = 0;
  if (get_version(&version) == 0) {
    driver.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  }
  if (get_count(&count) == 0) driver.devices = DeviceNames(library, count);
  driver.peers = CountPeers(library, count);
  return driver;
}

}  // namespace quire::cli
