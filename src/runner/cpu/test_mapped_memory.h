// Memory that this process has mapped, as much as each call asked for.
//
// The binary is linked with --wrap for mmap: calls of ours are seen, those of the C library are not.
#ifndef QUIRE_RUNNER_CPU_TEST_MAPPED_MEMORY_H_
#define QUIRE_RUNNER_CPU_TEST_MAPPED_MEMORY_H_

#include <vector>

#include "base/units.h"

namespace quire {

// Sizes of the Buffers that were made since the last call, in the order of their making.
std::vector<ByteOffset> TakeBufferSizes();

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_TEST_MAPPED_MEMORY_H_
