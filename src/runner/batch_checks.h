// What every runner checks of a batch before it starts a step.
#ifndef QUIRE_RUNNER_BATCH_CHECKS_H_
#define QUIRE_RUNNER_BATCH_CHECKS_H_

#include <cstdint>

#include "step/step.h"

namespace quire {

// Throws Error(kInvalidArgument), naming the sequence, the expected and the actual value, unless the
// batch keeps to the limits and all that it names is there. Of pages it looks at those that are not
// kept from a step before, and returns how many these are.
PageCount CheckBatch(const StepBatch& batch, const RunnerLimits& limits);
// The same, but that one of several groups may have a batch of no sequences: it takes part in the others'.
PageCount CheckBatchOfGroup(const StepBatch& batch, const RunnerLimits& limits, int32_t num_groups);

}  // namespace quire

#endif  // QUIRE_RUNNER_BATCH_CHECKS_H_
