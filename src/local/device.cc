#include "local/device.h"

#include <iterator>
#include <utility>

#include "base/error.h"
#include "device/cpu_model.h"
#include "device/thread_pool.h"
#include "local/machine.h"
#include "runner/cpu/cpu_step_device.h"
#include "runner/cpu/group_runners.h"
#include "runner/cpu_runner.h"

#ifdef QUIRE_CUDA
#include "device/cuda/device.h"
#include "device/cuda/nccl_ranks.h"
#include "kernels/cuda/gemm/gemm_planner.h"
#include "kernels/cuda/roof.h"
#include "runner/cuda/cuda_runner.h"
#include "runner/cuda/cuda_step_device.h"
#include "runner/cuda/group_runners.h"
#include "runner/cuda/local_ranks_device.h"
#include "runner/cuda/memory_plan.h"
#endif

namespace quire {
namespace {

#ifdef QUIRE_CUDA

constexpr bool kHasCuda = true;

std::string CudaProblem() { return cuda::DeviceProblem(); }
std::string CudaProductsProblem() {
  try {
    cuda::RequireBackend(cuda::GemmBackend::kCublasLt);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}
ByteOffset CudaMemory() { return cuda::QueryDevice().memory; }
std::string CudaName() { return cuda::QueryDevice().name; }
int32_t NumCudaDevices() { return cuda::NumDevices(); }

MemoryPlan CudaPlan(const ModelConfig& config, WeightSource& weights,
                    const RunnerOptions& options) {
  return cuda::MakeMemoryPlan(config, weights, options);
}

std::unique_ptr<MeteredRunner> MakeCudaRunner(const ModelConfig& config, WeightSource& weights,
                                              const RunnerOptions& options, const MemoryPlan& plan,
                                              const LoadProgress& progress,
                                              const std::shared_ptr<Collective>& ranks) {
  return std::make_unique<cuda::CudaRunner>(config, weights, options, plan, progress, ranks);
}

std::unique_ptr<cuda::CudaStepDevice> MakeCudaFollower(const ModelConfig& config,
                                                       WeightSource& weights,
                                                       const RunnerOptions& options,
                                                       const MemoryPlan& plan,
                                                       const LoadProgress& progress,
                                                       const std::shared_ptr<Collective>& ranks) {
  return std::make_unique<cuda::CudaStepDevice>(config, weights, options, plan, progress,
                                                cuda::MakeProcessRank(ranks));
}

std::vector<std::unique_ptr<ModelRunner>> MakeCudaGroups(
    const ModelConfig& config, WeightSource& weights, const RunnerOptions& options,
    const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks) {
  return cuda::MakeGroupRunners(config, weights, options, plan, progress, cuda::OnDevices(ranks));
}

std::string NcclProblem() { return cuda::NcclProblem(); }

GpuId UseCudaDevice(int32_t number) {
  cuda::UseDevice(number);
  return cuda::QueryDevice().uuid;
}

cpu::Roofs CudaRoofs(int repeats) {
  const cuda::Roofs roofs = cuda::MeasureRoofs(repeats);
  return {.read_bytes_per_s = roofs.read_bytes_per_s, .flops_per_s = roofs.flops_per_s};
}

#else

constexpr bool kHasCuda = false;

std::string CudaProblem() {
  return "this Quire was built without CUDA; make cuda builds one with it, build/cuda/quire";
}

// RequireDevice has thrown before one of these is called.
[[noreturn]] void FailWithoutCuda() { throw InternalError(CudaProblem()); }
std::string CudaProductsProblem() { FailWithoutCuda(); }
ByteOffset CudaMemory() { FailWithoutCuda(); }
std::string CudaName() { FailWithoutCuda(); }
int32_t NumCudaDevices() { return 0; }
std::string NcclProblem() { FailWithoutCuda(); }
GpuId UseCudaDevice(int32_t) { FailWithoutCuda(); }
MemoryPlan CudaPlan(const ModelConfig&, WeightSource&, const RunnerOptions&) { FailWithoutCuda(); }
std::unique_ptr<MeteredRunner> MakeCudaRunner(const ModelConfig&, WeightSource&,
                                              const RunnerOptions&, const MemoryPlan&,
                                              const LoadProgress&,
                                              const std::shared_ptr<Collective>&) {
  FailWithoutCuda();
}
std::unique_ptr<CpuStepDevice> MakeCudaFollower(const ModelConfig&, WeightSource&,
                                                const RunnerOptions&, const MemoryPlan&,
                                                const LoadProgress&,
                                                const std::shared_ptr<Collective>&) {
  FailWithoutCuda();
}
std::vector<std::unique_ptr<ModelRunner>> MakeCudaGroups(
    const ModelConfig&, WeightSource&, const RunnerOptions&, const MemoryPlan&, const LoadProgress&,
    std::span<const std::shared_ptr<Collective>>) {
  FailWithoutCuda();
}
cpu::Roofs CudaRoofs(int) { FailWithoutCuda(); }

#endif

void RequireDevice(DeviceKind device) {
  const std::string problem = DeviceProblem(device);
  Require(problem.empty(), "device: expected one that can be used, got {}: {}",
          DeviceKindName(device), problem);
}

}  // namespace

const char* DeviceKindName(DeviceKind device) {
  return device == DeviceKind::kCpu ? "cpu" : "cuda";
}

bool IsBuiltWithCuda() { return kHasCuda; }

std::string DeviceProblem(DeviceKind device) {
  return device == DeviceKind::kCpu ? std::string() : CudaProblem();
}

std::string ProductsProblem(DeviceKind device) {
  RequireDevice(device);
  return device == DeviceKind::kCpu ? std::string() : CudaProductsProblem();
}

DeviceKind ChooseDevice(DeviceChoice choice) {
  if (choice == DeviceChoice::kAuto) {
    return DeviceProblem(DeviceKind::kCuda).empty() ? DeviceKind::kCuda : DeviceKind::kCpu;
  }
  const DeviceKind device = choice == DeviceChoice::kCpu ? DeviceKind::kCpu : DeviceKind::kCuda;
  RequireDevice(device);
  return device;
}

ByteOffset MemoryOf(DeviceKind device) {
  RequireDevice(device);
  return device == DeviceKind::kCpu ? AvailableMemory() : CudaMemory();
}

std::string DeviceName(DeviceKind device) {
  RequireDevice(device);
  return device == DeviceKind::kCpu ? CpuModel() : CudaName();
}

int32_t NumGpus() { return NumCudaDevices(); }

std::string GpuRanksProblem() {
  const std::string problem = CudaProblem();
  return problem.empty() ? NcclProblem() : problem;
}

GpuId UseGpu(int32_t number) {
  RequireDevice(DeviceKind::kCuda);
  return UseCudaDevice(number % NumGpus());
}

int32_t RanksOfDevice(DeviceKind device, int32_t num_ranks) {
  return device == DeviceKind::kCuda && NumGpus() >= num_ranks ? 1 : num_ranks;
}

StepMode StepModeFor(DeviceKind device) {
  return device == DeviceKind::kCpu ? StepMode::kEager : StepMode::kGraph;
}

TokenCount StepTokensFor(DeviceKind device, TokenCount least) {
  constexpr TokenCount kGpuStepTokens{8192};
  return device == DeviceKind::kCpu ? least : Max(least, kGpuStepTokens);
}

MemoryPlan PlanMemory(DeviceKind device, const ModelConfig& config, WeightSource& weights,
                      const RunnerOptions& options) {
  RequireDevice(device);
  return device == DeviceKind::kCpu ? MakeMemoryPlan(config, weights, options)
                                    : CudaPlan(config, weights, options);
}

std::unique_ptr<MeteredRunner> MakeRunner(DeviceKind device, const ModelConfig& config,
                                          WeightSource& weights, const RunnerOptions& options,
                                          const MemoryPlan& plan, const LoadProgress& progress,
                                          const std::shared_ptr<Collective>& ranks) {
  RequireDevice(device);
  if (device == DeviceKind::kCuda) {
    return MakeCudaRunner(config, weights, options, plan, progress, ranks);
  }
  auto runner = std::make_unique<CpuRunner>(config, weights, options, plan, progress, ranks);
  if (ranks != nullptr) ranks->WaitForAll();
  return runner;
}

void FollowRank(DeviceKind device, const ModelConfig& config, WeightSource& weights,
                const RunnerOptions& options, const MemoryPlan& plan, const LoadProgress& progress,
                const std::shared_ptr<Collective>& ranks) {
  RequireDevice(device);
  const auto follow = [&](const auto& follower) {
    ranks->WaitForAll();
    follower->Follow();
  };
  if (device == DeviceKind::kCuda) {
    follow(MakeCudaFollower(config, weights, options, plan, progress, ranks));
  } else {
    follow(std::make_unique<CpuStepDevice>(config, weights, options, plan, progress, ranks));
  }
}

std::vector<std::unique_ptr<MeteredRunner>> MakeGroups(
    DeviceKind device, const ModelConfig& config, WeightSource& weights,
    const RunnerOptions& options, const MemoryPlan& plan, const LoadProgress& progress,
    std::span<const std::shared_ptr<Collective>> ranks) {
  RequireDevice(device);
  auto runners = device == DeviceKind::kCuda
                     ? MakeCudaGroups(config, weights, options, plan, progress, ranks)
                     : MakeGroupRunners(config, weights, options, plan, progress, ranks);
  return {std::make_move_iterator(runners.begin()), std::make_move_iterator(runners.end())};
}

cpu::Roofs MeasureRoofs(DeviceKind device, int num_threads, int repeats) {
  RequireDevice(device);
  if (device == DeviceKind::kCuda) return CudaRoofs(repeats);
  ThreadPool threads(num_threads);
  return cpu::RoofMeter(threads).Measure(repeats);
}

}  // namespace quire
