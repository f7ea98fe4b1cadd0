#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/row_ops/pick_rows_launch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

// One CTA per row; T is an element's bits.
template <class T>
__global__ void Pick(const PickRowsParams params) {
  TakeTurn();
  const int32_t wanted = params.rows[blockIdx.x];
  const bool is_there = wanted >= 0 && wanted < params.num_tokens;
  if (!is_there && threadIdx.x == 0) {
    Report(params.status, DeviceFault::kCapacity, Launch::kPickRows, blockIdx.x);
  }
  const T* from =
      reinterpret_cast<const T*>(params.x) + int64_t{is_there ? wanted : 0} * params.x_stride;
  T* to = reinterpret_cast<T*>(params.y) + int64_t{blockIdx.x} * params.y_stride;
  for (int64_t i = threadIdx.x; i < params.width; i += kThreads) to[i] = from[i];
}

}  // namespace

void LaunchPickRows(const PickRowsParams& params, const Stream& stream) {
  const auto pick = params.element_bytes == 2 ? Pick<uint16_t> : Pick<uint32_t>;
  LaunchAhead("pick_rows", pick, {static_cast<unsigned>(params.num_rows), kThreads}, stream,
              params);
}

}  // namespace quire::cuda
