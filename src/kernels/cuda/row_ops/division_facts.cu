#include <cstddef>

#include "base/error.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/row_ops/division_facts.h"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMantissas = 1 << 23;

__global__ void __launch_bounds__(kThreads)
    DividerKernel(float scale, const float* x, int count, uint32_t* different) {
  const auto mantissa = blockIdx.x * kThreads + threadIdx.x;
  const float divisor = scale * (1.0f + static_cast<float>(mantissa) / kMantissas);
  const UncheckedDivisor unchecked(divisor);
  for (int i = 0; i < count; ++i) {
    const bool differs = unchecked.Divide(x[i]) != __fdiv_rn(x[i], divisor);
    const int in_cta = __syncthreads_count(differs);
    if (threadIdx.x == 0 && in_cta > 0) atomicAdd(different + i, static_cast<uint32_t>(in_cta));
  }
}

}  // namespace

void CountDifferentQuotients(float scale, std::span<const float> x, std::span<uint32_t> different,
                             const Stream& stream) {
  QUIRE_CHECK(x.size() == different.size(), "{} and {}", x.size(), different.size());
  LaunchInTurn("divide", DividerKernel, {.grid = kMantissas / kThreads, .block = kThreads}, stream,
               scale, x.data(), static_cast<int>(x.size()), different.data());
}

}  // namespace quire::cuda
