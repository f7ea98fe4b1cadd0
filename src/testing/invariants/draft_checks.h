// I6, I7: drafts for other engines.
#ifndef QUIRE_TESTING_INVARIANTS_DRAFT_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_DRAFT_CHECKS_H_

#include "attn/capacity.h"
#include "testing/invariants/trial.h"

namespace quire::testing {

// Draft step i of a branch sees committed + i + 1 keys, in rows and in tables (I7).
void CheckDraftExports(const Trial& trial, const StepCapacity& capacity);
// A little too little, in capacity or in buffers, is refused, and nothing written (I6).
void CheckDraftRefusals(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_DRAFT_CHECKS_H_
