// The fault this test run puts back, if any: what tests hand to sizing, planning and stores.
#ifndef QUIRE_TESTING_ACTIVE_FAULTS_H_
#define QUIRE_TESTING_ACTIVE_FAULTS_H_

#include <string_view>

#include "base/faults.h"

namespace quire::testing {

// Faults{} unless the test main called PutBackFault.
Faults ActiveFaults();

// Takes the number of a fault as QUIRE_REVERT spells it. False, with a message on stderr, if there
// is no such fault or this build has none.
bool PutBackFault(std::string_view number);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_ACTIVE_FAULTS_H_
