// What computes: this machine's CPU, or its GPU where Quire was built for one.
#ifndef QUIRE_LOCAL_DEVICE_H_
#define QUIRE_LOCAL_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/collective.h"
#include "kernels/cpu/roof.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"

namespace quire {

enum class DeviceKind { kCpu, kCuda };
const char* DeviceKindName(DeviceKind device);

// What a user asks for. kAuto takes the GPU if it can be used, and otherwise the CPU.
enum class DeviceChoice { kAuto, kCpu, kCuda };

// Whether this Quire was built with CUDA.
bool IsBuiltWithCuda();

// Why `device` cannot be used; empty if it can.
std::string DeviceProblem(DeviceKind device);

// Why a device that can be used computes with --deterministic alone; empty if it does without, too.
std::string ProductsProblem(DeviceKind device);

// The device that `choice` means here. Throws Error(kInvalidArgument), with why, if it cannot be used.
// So do the functions below.
DeviceKind ChooseDevice(DeviceChoice choice);

// Memory that a runner's limit is a fraction of: what the machine has available now, or all that the
// GPU has.
ByteOffset MemoryOf(DeviceKind device);
// "NVIDIA H200", or the CPU's name.
std::string DeviceName(DeviceKind device);

// The GPUs that this process sees; 0 where it cannot say.
int32_t NumGpus();
// Why ranks cannot have a GPU each; empty if they can.
std::string GpuRanksProblem();
// What no other GPU has.
using GpuId = std::array<std::byte, 16>;
// The calling thread uses the GPU of this number from now on, counted round where there are fewer.
GpuId UseGpu(int32_t number);

// How many of `num_ranks` ranks of this process share the memory that MemoryOf says: on the CPU all do, and so
// they do on GPUs where there are fewer of these.
int32_t RanksOfDevice(DeviceKind device, int32_t num_ranks);

// How steps run where nobody says: on a GPU they are recorded as graphs.
StepMode StepModeFor(DeviceKind device);
// The tokens that a step takes at most where nobody says: `least`, and on a GPU 8192 if that is more,
// because fewer leave its arithmetic idle while weights are read.
TokenCount StepTokensFor(DeviceKind device, TokenCount least);

// What quire::MakeMemoryPlan says for the device.
MemoryPlan PlanMemory(DeviceKind device, const ModelConfig& config, WeightSource& weights,
                      const RunnerOptions& options);
// `plan` is PlanMemory's for the same arguments. `ranks` is rank 0's end of the group where ranks are
// processes, or a group's of its own: then the others have loaded their share when it returns.
std::unique_ptr<MeteredRunner> MakeRunner(DeviceKind device, const ModelConfig& config,
                                          WeightSource& weights, const RunnerOptions& options,
                                          const MemoryPlan& plan, const LoadProgress& progress = {},
                                          const std::shared_ptr<Collective>& ranks = nullptr);
// What MakeRunner makes at rank 0, at a rank that is another process: loads its share, waits until all have,
// and does what rank 0 says until that ends, or a rank fails.
void FollowRank(DeviceKind device, const ModelConfig& config, WeightSource& weights,
                const RunnerOptions& options, const MemoryPlan& plan, const LoadProgress& progress,
                const std::shared_ptr<Collective>& ranks);

// A runner for each of options.dp_size groups, whose ranks are of this process: `ranks` are all of theirs. Each is
// called on a thread of its own, since they may wait for each other in every call.
std::vector<std::unique_ptr<MeteredRunner>> MakeGroups(
    DeviceKind device, const ModelConfig& config, WeightSource& weights,
    const RunnerOptions& options, const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks);

// While there is no runner, so that the memory it reads adds nothing to the plan.
cpu::Roofs MeasureRoofs(DeviceKind device, int num_threads, int repeats);

}  // namespace quire

#endif  // QUIRE_LOCAL_DEVICE_H_
