// CUDA's runtime, as the rest of the project uses it: calls that fail throw, and what they make is
// owned. Only files in cuda/ folders include this.
#ifndef QUIRE_DEVICE_CUDA_CUDA_H_
#define QUIRE_DEVICE_CUDA_CUDA_H_

#include "device/cuda/check.h"   // IWYU pragma: export
#include "device/cuda/device.h"  // IWYU pragma: export
#include "device/cuda/graph.h"   // IWYU pragma: export
#include "device/cuda/memory.h"  // IWYU pragma: export
#include "device/cuda/status.h"  // IWYU pragma: export
#include "device/cuda/stream.h"  // IWYU pragma: export

#endif  // QUIRE_DEVICE_CUDA_CUDA_H_
