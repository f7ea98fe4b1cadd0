// How often this process has called what a step must not call more than once, or at all, and how much memory
// of the device it has taken.
//
// The binary is linked with --wrap for each of these functions: calls of ours and of the libraries
// that are linked statically are counted.
#ifndef QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_
#define QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace quire::cuda {

struct CallCounts {
  int64_t waits = 0;        // of the host, for an event, a stream or the device
  int64_t allocations = 0;  // of device and pinned memory
};
CallCounts CallsSoFar();

// Sizes of what was taken of the device's memory since the last call, in the order of the taking.
std::vector<ByteOffset> TakeDeviceSizes();

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_
