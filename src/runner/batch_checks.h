// What every runner checks of a batch before it starts a step.
#ifndef QUIRE_RUNNER_BATCH_CHECKS_H_
#define QUIRE_RUNNER_BATCH_CHECKS_H_

#include "step/step.h"

namespace quire {

// Throws Error(kInvalidArgument), naming the sequence, the expected and the actual value, unless the
// batch keeps to the limits and all that it names is there. Of pages it looks at those that are not
// kept from a step before, and returns how many these are.
PageCount CheckBatch(const StepBatch& batch, const RunnerLimits& limits);

}  // namespace quire

#endif  // QUIRE_RUNNER_BATCH_CHECKS_H_
