#include "testing/active_faults.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "base/fault_names.h"

namespace quire::testing {
namespace {

// Written once by the test main, before any test runs.
Faults g_active_faults;

}  // namespace

Faults ActiveFaults() { return g_active_faults; }

bool PutBackFault(std::string_view number) {
  try {
    g_active_faults = ParseFault(number);
    return true;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return false;
  }
}

}  // namespace quire::testing
