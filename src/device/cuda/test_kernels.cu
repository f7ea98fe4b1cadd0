#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/status.cuh"
#include "device/cuda/test_kernels.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void AddToAllKernel(int32_t* values, int64_t count, int32_t amount) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] += amount;
}

__global__ void ReportFromAllKernel(StatusWord status, DeviceFault fault) {
  Report(status, fault, Launch::kTest, blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void AddAfterAWhileKernel(int32_t* values, long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  values[0] += 1;
}

}  // namespace

void AddToAll(std::span<int32_t> values, int32_t amount, const Stream& stream) {
  if (values.empty()) return;
  const int64_t count = static_cast<int64_t>(values.size());
  const auto ctas = static_cast<unsigned>(CeilDiv(count, int64_t{kThreads}));
  AddToAllKernel<<<ctas, kThreads, 0, stream.get()>>>(values.data(), count, amount);
  CheckLaunch("add_to_all");
}

void ReportFromAll(StatusWord status, DeviceFault fault, int ctas, int threads,
                   const Stream& stream) {
  ReportFromAllKernel<<<ctas, threads, 0, stream.get()>>>(status, fault);
  CheckLaunch("report_from_all");
}

void AddAfterAWhile(std::span<int32_t> values, int64_t cycles, const Stream& stream) {
  AddAfterAWhileKernel<<<1, 1, 0, stream.get()>>>(values.data(), cycles);
  CheckLaunch("add_after_a_while");
}

void LaunchTooLarge(const Stream& stream) {
  AddToAllKernel<<<1, 1 << 20, 0, stream.get()>>>(nullptr, 0, 0);
  CheckLaunch("too_large");
}

}  // namespace quire::cuda
