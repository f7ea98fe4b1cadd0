// What the memory plans of all runners have in common.
#ifndef QUIRE_RUNNER_PLAN_PARTS_H_
#define QUIRE_RUNNER_PLAN_PARTS_H_

#include "base/executor.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"
#include "runner/step_memory.h"
#include "step/step.h"

namespace quire {

// The model as the options have it run: a rank's part of it, drafting or not, and with a top_k of its
// indexer that may be narrower than the file's. Throws Error(kInvalidArgument) for one that is wider, or
// of a model without an indexer, and as WithDraftLayer and WithShard do.
ModelConfig ConfigFor(const ModelConfig& model, const RunnerOptions& options);

// Throws Error(kInvalidArgument), naming the option, its range and its value.
void CheckOptions(const ModelConfig& config, const RunnerOptions& options);

// With every default resolved; the pool is still to be chosen.
RunnerLimits LimitsWithoutPool(const ModelConfig& config, const RunnerOptions& options);

// How a backend brings weights, and what its steps take.
struct BackendMemory {
  // Calls pack(packer) with the backend's packer over a Carver that counts.
  FunctionRef<void(Carver&, FunctionRef<void(WeightPacker&)> pack)> load;
  FunctionRef<StepMemory(const RunnerLimits&)> steps;  // counted
  ByteOffset outside = {};                             // in use already
};

// The plan of a runner on this backend. Throws as MakeMemoryPlan.
MemoryPlan PlanMemory(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                      const BackendMemory& backend);

// The plan of options.rank, of several ranks with a pool that all have room for: plan_of(options) is that of
// one rank alone.
MemoryPlan PlanOfRanks(const RunnerOptions& options,
                       FunctionRef<MemoryPlan(const RunnerOptions&)> plan_of);

// Chooses the pool and sets the plan's KV parts: all pages that the options ask for, or as many as
// the memory limit leaves room for beside what the plan has already. Throws
// Error(kCapacityExceeded), with every part of the need, if that is too few.
void ChoosePool(const ModelConfig& config, const RunnerOptions& options, MemoryPlan& plan);

}  // namespace quire

#endif  // QUIRE_RUNNER_PLAN_PARTS_H_
