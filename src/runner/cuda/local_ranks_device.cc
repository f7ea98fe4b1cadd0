#include "runner/cuda/local_ranks_device.h"

#include <iterator>
#include <utility>

#include "device/cuda/nccl_ranks.h"
#include "runner/cuda/memory_plan.h"

namespace quire::cuda {

HostRanks MakeHostRanks(int32_t size, std::chrono::milliseconds patience) {
  auto made = MakeLocalRanks(size, patience);
  return {std::make_move_iterator(made.begin()), std::make_move_iterator(made.end())};
}

std::vector<CudaRank> ShareDevice(std::span<const std::shared_ptr<Collective>> hosts) {
  const auto group = std::make_shared<LocalDeviceRank::Group>();
  std::vector<CudaRank> ranks;
  for (const auto& host : hosts) {
    ranks.push_back({.host = host, .device = std::make_shared<LocalDeviceRank>(host, group)});
  }
  return ranks;
}

std::vector<CudaRank> JoinByNccl(std::span<const std::shared_ptr<Collective>> hosts) {
  std::vector<CudaRank> ranks;
  for (const auto& host : hosts) ranks.push_back(MakeProcessRank(host));
  return ranks;
}

std::vector<CudaRank> OnDevices(std::span<const std::shared_ptr<Collective>> hosts) {
  return NumDevices() >= std::ssize(hosts) ? JoinByNccl(hosts) : ShareDevice(hosts);
}

CudaRank MakeProcessRank(const std::shared_ptr<Collective>& host) {
  return {.host = host, .device = std::make_shared<NcclRank>(host)};
}

LocalRanksDevice::LocalRanksDevice(const ModelConfig& model, WeightSource& source,
                                   const RunnerOptions& options, const MemoryPlan& plan,
                                   const LoadProgress& progress, const std::vector<CudaRank>& ranks)
    : CudaStepDevice(model, source, options, plan,
                     ProgressOfRank(progress, 0, options, plan.weights, plan.weights), ranks[0]),
      followers_(*ranks[0].host, [&](int32_t rank) {
        const CudaRank& own_rank = ranks[static_cast<size_t>(rank)];
        if (own_rank.device->ranks_of_device() == 1) UseDevice(rank);
        RunnerOptions each = OptionsOfOthers(options, plan);
        each.rank = rank;
        const MemoryPlan own = cuda::MakeMemoryPlan(model, source, each);
        return std::make_unique<CudaStepDevice>(
            model, source, each, own,
            ProgressOfRank(progress, rank, options, own.weights, plan.weights), own_rank);
      }) {}

LocalRanksDevice::~LocalRanksDevice() {
  Abandon(nullptr);
  followers_.Join();
}

std::unique_ptr<StepDevice> MakeCudaStepDevice(const ModelConfig& model, WeightSource& source,
                                               const RunnerOptions& options, const MemoryPlan& plan,
                                               const LoadProgress& progress,
                                               const std::shared_ptr<Collective>& ranks) {
  if (ranks != nullptr) {
    auto device = std::make_unique<ProcessRanksDevice>(model, source, options, plan, progress,
                                                       MakeProcessRank(ranks));
    ranks->WaitForAll();
    return device;
  }
  if (options.tp_size == 1) {
    return std::make_unique<CudaStepDevice>(model, source, options, plan, progress);
  }
  return std::make_unique<LocalRanksDevice>(model, source, options, plan, progress,
                                            OnDevices(MakeHostRanks(options.tp_size)));
}

}  // namespace quire::cuda
