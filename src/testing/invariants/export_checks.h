// I1, I4, I6: what other engines read.
#ifndef QUIRE_TESTING_INVARIANTS_EXPORT_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_EXPORT_CHECKS_H_

#include "testing/invariants/trial.h"

namespace quire::testing {

// Every flat form and table, eager and bucket: the slots of the batch, inside its buffers (I1, I4).
void CheckExports(const Trial& trial);
// A little too little, in capacity or in buffers, is refused, and nothing written (I6).
void CheckExportRefusals(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_EXPORT_CHECKS_H_
