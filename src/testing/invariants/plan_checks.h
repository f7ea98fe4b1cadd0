// I1, I5, I6, I7, I9: our own plan, and attention by it.
#ifndef QUIRE_TESTING_INVARIANTS_PLAN_CHECKS_H_
#define QUIRE_TESTING_INVARIANTS_PLAN_CHECKS_H_

#include "attn/plan_storage.h"
#include "testing/invariants/trial.h"

namespace quire::testing {

// The plan is right, and the same eager as in `bucket`, which has seen other batches (I1, I5, I9).
void CheckPlans(const Trial& trial, PlanStorage& bucket);
// Draft step i of a branch sees committed + i + 1 keys (I7), in our own form.
void CheckDraftLevels(const Trial& trial, PlanStorage& bucket);
// One more than the capacity is refused, and the plan before it stays whole (I6).
void CheckPlanRefusals(const Trial& trial, PlanStorage& bucket);
// Ranges of pages (sglang #27320) partition every row, and none is long (I9).
void CheckPageRanges(const Trial& trial);
// Eager and in a padded bucket, attention gives the same bits (I5).
void CheckAttention(const Trial& trial);

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_PLAN_CHECKS_H_
