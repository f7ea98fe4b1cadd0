// What computes: this machine's CPU, or its GPU where this program was built for one.
#ifndef QUIRE_CLI_BACKEND_H_
#define QUIRE_CLI_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/units.h"
#include "kernels/cpu/roof.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"

namespace quire::cli {

enum class DeviceKind { kCpu, kCuda };
const char* DeviceKindName(DeviceKind device);

// Whether this program was built with CUDA.
bool IsBuiltWithCuda();

// Why `device` cannot be used; empty if it can.
std::string DeviceProblem(DeviceKind device);

// Throws Error(kInvalidArgument), with why, unless `device` can be used. So do those below.
void RequireDevice(DeviceKind device);

// Memory that a runner's limit is a fraction of: what the machine has available now, or all that the
// GPU has.
ByteOffset MemoryOf(DeviceKind device);
// "NVIDIA H200", or the CPU's name.
std::string DeviceName(DeviceKind device);

// What quire::MakeMemoryPlan says for the device.
MemoryPlan PlanMemory(DeviceKind device, const ModelConfig& config, WeightSource& weights,
                      const RunnerOptions& options);
// `plan` is PlanMemory's for the same arguments.
std::unique_ptr<MeteredRunner> MakeRunner(DeviceKind device, const ModelConfig& config,
                                          WeightSource& weights, const RunnerOptions& options,
                                          const MemoryPlan& plan,
                                          const LoadProgress& progress = {});

// While there is no runner, so that the memory it reads adds nothing to the plan.
cpu::Roofs MeasureRoofs(DeviceKind device, int num_threads, int repeats);

}  // namespace quire::cli

#endif  // QUIRE_CLI_BACKEND_H_
