// How often this process has allocated, for tests of code that promises not to.
//
// A binary that links quire_allocation_count and calls AllocationCount has its operator new
// replaced, every form of it. Direct calls of mmap are not seen, and those of malloc only by clang's
// ThreadSanitizer.
#ifndef QUIRE_TESTING_ALLOCATION_COUNT_H_
#define QUIRE_TESTING_ALLOCATION_COUNT_H_

#include <cstdint>

namespace quire::testing {

// Calls of operator new so far, on all threads.
int64_t AllocationCount();

}  // namespace quire::testing

#endif  // QUIRE_TESTING_ALLOCATION_COUNT_H_
