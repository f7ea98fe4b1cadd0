// How often this process has called what a step must not call more than once, or at all.
//
// The binary is linked with --wrap for each of these functions: calls of ours and of the libraries
// that are linked statically are counted.
#ifndef QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_
#define QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_

#include <cstdint>

namespace quire::cuda {

struct CallCounts {
  int64_t waits = 0;        // of the host, for an event, a stream or the device
  int64_t allocations = 0;  // of device and pinned memory
};
CallCounts CallsSoFar();

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_TEST_CALL_COUNT_H_
