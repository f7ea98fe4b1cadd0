// How often and how much this process has allocated, for tests of code that promises not to, or not more
// than so much.
//
// A binary that links quire_allocation_count and calls one of these has its operator new replaced, every form of it. Direct calls of mmap are not seen, and those of malloc only by clang's
// ThreadSanitizer.
#ifndef QUIRE_TESTING_ALLOCATION_COUNT_H_
#define QUIRE_TESTING_ALLOCATION_COUNT_H_

#include <cstdint>

namespace quire::testing {

// Calls of operator new so far, on all threads.
int64_t AllocationCount();

// Bytes that operator new has given and operator delete has not got back, on all threads.
int64_t AllocatedBytes();
// The most that there were since the last ResetPeakBytes.
int64_t PeakBytes();
void ResetPeakBytes();

}  // namespace quire::testing

#endif  // QUIRE_TESTING_ALLOCATION_COUNT_H_
