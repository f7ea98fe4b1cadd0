// The main of every test binary. It alone reads QUIRE_REVERT: the number of a fault to put back.
#include <gtest/gtest.h>

#include <cstdlib>

#include "testing/active_faults.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* number = std::getenv("QUIRE_REVERT")) {
    if (!quire::testing::PutBackFault(number)) return 2;
  }
  return RUN_ALL_TESTS();
}
