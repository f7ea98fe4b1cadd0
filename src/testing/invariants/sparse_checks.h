// I11 and I12: sparse attention.
#ifndef QUIRE_TESTING_INVARIANTS_SPARSE_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_SPARSE_CHECKS_H_

#include "testing/invariants/trial.h"

namespace quire::testing {

// Queries of the batch, trees among them, choose keys by an indexer that is drawn at random, and attend
// to them: what they choose is near the reference's choice, neither pages nor the layout of index keys
// nor workers change it, and a choice of everything has the bits of dense attention.
void CheckSparseAttention(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_SPARSE_CHECKS_H_
