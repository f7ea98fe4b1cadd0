// I10: stores.
#ifndef QUIRE_TESTING_INVARIANTS_STORE_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_STORE_CHECKS_H_

#include "testing/invariants/trial.h"

namespace quire::testing {

// Rows written and moved at random read back bit for bit, in one latent format and as index keys.
void CheckStores(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_STORE_CHECKS_H_
