// Launches that overlap: a kernel begins while the one before it in the stream ends.
//
// A launch costs a few microseconds in which the device is idle: the last CTAs of one kernel leave, the
// first of the next are placed. In a stream that overlaps, or if its shape says so, a kernel launched by
// LaunchAhead is placed as soon as every CTA of the kernel before has taken its turn, or has ended. Until it
// takes its own it may touch only what no kernel of the stream writes, such as weights, and what it alone
// has. What kernels further back have written it may read, by loads that pass L1 by: the kernel before has
// waited for them.
//
// Every thread of such a kernel calls TakeTurn (device/cuda/kernel.cuh) before it does anything else with
// memory (but a fault it may report at once), and no CTA ends without it: so a kernel that has ended has
// waited for all before it, and the order of the stream is kept for whoever comes next, overlapped or not.
//
// It pays where kernels are short and small: waiting CTAs take room, and a large grid of them is placed
// late. docs/kernels/README.md has the figures.
#ifndef QUIRE_DEVICE_CUDA_LAUNCH_H_
#define QUIRE_DEVICE_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

struct LaunchShape {
  dim3 grid = {};
  dim3 block = {};
  size_t shared_bytes = 0;
  unsigned cluster = 1;   // CTAs beside each other in the grid's first dimension
  bool overlaps = false;  // in every stream: the kernel before is known, and loses nothing by it
};

// Throws DeviceError, naming `name`, if the kernel could not be launched. What goes wrong while it runs is told
// by a later call. It begins when all before it in the stream has ended, unless its shape says that it overlaps.
template <class... Params, class... Args>
void LaunchInTurn(const char* name, void (*kernel)(Params...), const LaunchShape& shape,
                  const Stream& stream, Args&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = shape.overlaps ? 1 : 0;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  Check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), name);
}

// The same of a kernel that calls TakeTurn: it overlaps where the stream does, too.
template <class... Params, class... Args>
void LaunchAhead(const char* name, void (*kernel)(Params...), const LaunchShape& shape,
                 const Stream& stream, Args&&... args) {
  LaunchShape ahead = shape;
  ahead.overlaps = shape.overlaps || stream.overlaps();
  LaunchInTurn(name, kernel, ahead, stream, std::forward<Args>(args)...);
}

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_LAUNCH_H_
