// A runner on the CPU.
#ifndef QUIRE_RUNNER_CPU_RUNNER_H_
#define QUIRE_RUNNER_CPU_RUNNER_H_

#include <memory>
#include <utility>

#include "device/collective.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cpu/local_ranks_device.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "runner/runner_options.h"

namespace quire {

class CpuRunner final : public ModelRunner {
 public:
  // Takes plan.total() bytes for every rank, and loads the weights; `plan` is MakeMemoryPlan's for
  // the same arguments. Throws as it does.
  CpuRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
            const MemoryPlan& plan, const LoadProgress& progress = {},
            std::shared_ptr<Collective> ranks = nullptr)
      : ModelRunner(MakeCpuStepDevice(config, source, options, plan, progress, std::move(ranks)),
                    plan) {}
};

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_RUNNER_H_
