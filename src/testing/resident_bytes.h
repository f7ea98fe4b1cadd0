// How much of the machine's memory this process has.
#ifndef QUIRE_TESTING_RESIDENT_BYTES_H_
#define QUIRE_TESTING_RESIDENT_BYTES_H_

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace quire::testing {

// Under a sanitizer its shadow counts, too.
inline int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_RESIDENT_BYTES_H_
