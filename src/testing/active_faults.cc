#include "testing/active_faults.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

namespace quire::testing {
namespace {

// Written once by the test main, before any test runs.
Faults g_active_faults;

constexpr std::array kFaults = {Fault::kFlatIndexSizedInPages, Fault::kTilesCountedInPages,
                                Fault::kIndexKeyLayoutMismatch, Fault::kSerialPageTableFill,
                                Fault::kDraftRowsWithoutBranches};

}  // namespace

Faults ActiveFaults() { return g_active_faults; }

bool PutBackFault(std::string_view number) {
#ifdef QUIRE_FAULTS
  for (Fault fault : kFaults) {
    if (fmt::format("{}", static_cast<int>(fault)) == number) {
      g_active_faults = Faults(fault);
      return true;
    }
  }
  fmt::print(stderr, "QUIRE_REVERT: no fault is called '{}'\n", number);
#else
  fmt::print(stderr, "QUIRE_REVERT: this build has no faults to put back ('{}' of {})\n", number,
             kFaults.size());
#endif
  return false;
}

}  // namespace quire::testing
