#include "base/maths.h"
#include "device/cuda/launch.h"
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
  LaunchInTurn("add_to_all", AddToAllKernel, {.grid = dim3(ctas), .block = dim3(kThreads)}, stream,
               values.data(), count, amount);
}

void ReportFromAll(StatusWord status, DeviceFault fault, int ctas, int threads,
                   const Stream& stream) {
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(ctas)),
                             .block = dim3(static_cast<unsigned>(threads))};
  LaunchInTurn("report_from_all", ReportFromAllKernel, shape, stream, status, fault);
}

void AddAfterAWhile(std::span<int32_t> values, int64_t cycles, const Stream& stream) {
  LaunchInTurn("add_after_a_while", AddAfterAWhileKernel, {.grid = dim3(1), .block = dim3(1)},
               stream, values.data(), cycles);
}

void LaunchTooLarge(const Stream& stream) {
  LaunchInTurn("too_large", AddToAllKernel, {.grid = dim3(1), .block = dim3(1 << 20)}, stream,
               nullptr, 0, 0);
}

}  // namespace quire::cuda
