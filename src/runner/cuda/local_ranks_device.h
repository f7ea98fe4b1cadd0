// Steps of one model on several ranks, of this process, on one GPU or on one each, or of several processes.
#ifndef QUIRE_RUNNER_CUDA_LOCAL_RANKS_DEVICE_H_
#define QUIRE_RUNNER_CUDA_LOCAL_RANKS_DEVICE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/collective.h"
#include "kernels/weight.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cuda/cuda_step_device.h"
#include "runner/local_ranks_device.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"
#include "runner/step_device.h"

namespace quire::cuda {

// All ranks of a group of this process; rank r is at [r].
using HostRanks = std::vector<std::shared_ptr<Collective>>;
HostRanks MakeHostRanks(int32_t size, std::chrono::milliseconds patience = kRankPatience);

// The same ranks, all on the calling thread's GPU.
std::vector<CudaRank> ShareDevice(std::span<const std::shared_ptr<Collective>> hosts);
// With a GPU each, by NCCL. Throws Error(kInvalidArgument) if that cannot be used.
std::vector<CudaRank> JoinByNccl(std::span<const std::shared_ptr<Collective>> hosts);
// With a GPU each where there are as many, and otherwise all on one.
std::vector<CudaRank> OnDevices(std::span<const std::shared_ptr<Collective>> hosts);

// Rank 0's device, with the others behind it. Rank r of NCCL's is on GPU r.
class LocalRanksDevice final : public CudaStepDevice {
 public:
  // `plan` is rank 0's. Ranks load their weights one after the other.
  LocalRanksDevice(const ModelConfig& model, WeightSource& source, const RunnerOptions& options,
                   const MemoryPlan& plan, const LoadProgress& progress,
                   const std::vector<CudaRank>& ranks);
  ~LocalRanksDevice() override;

 private:
  LocalFollowers<CudaStepDevice> followers_;
};

// This process's rank, where each is a process with a GPU, by NCCL: on the calling thread's device. Throws as
// JoinByNccl.
CudaRank MakeProcessRank(const std::shared_ptr<Collective>& host);

// Rank 0's device where the others are processes.
class ProcessRanksDevice final : public CudaStepDevice {
 public:
  using CudaStepDevice::CudaStepDevice;
  // What NCCL was given may wait for a rank that is gone.
  ~ProcessRanksDevice() override { Abandon(nullptr); }
};

// The device of one rank, or of several: a GPU each where there are as many, and otherwise all on the first.
// With `ranks`, which is rank 0's end of their group, or that of a rank with tokens of its own, the others are
// processes with a GPU each, and have loaded their share when it returns.
std::unique_ptr<StepDevice> MakeCudaStepDevice(const ModelConfig& model, WeightSource& source,
                                               const RunnerOptions& options, const MemoryPlan& plan,
                                               const LoadProgress& progress,
                                               const std::shared_ptr<Collective>& ranks = nullptr);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_LOCAL_RANKS_DEVICE_H_
