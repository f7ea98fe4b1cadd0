// I9: the prefill planner.
#ifndef QUIRE_TESTING_INVARIANTS_PREFILL_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_PREFILL_CHECKS_H_

#include "testing/invariants/trial.h"

namespace quire::testing {

// Pieces of work of random prefills partition what is to be done, in token and in page blocks.
void CheckPrefillPlans(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_PREFILL_CHECKS_H_
