// Ranks that are processes of their own, which mpirun or Slurm has started: rank 0 has the runner and tells
// the others what to run, and they follow. Of groups each has a runner, and rank 0 calls all of them.
#ifndef QUIRE_LOCAL_RANKS_H_
#define QUIRE_LOCAL_RANKS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "device/collective.h"
#include "device/mpi_ranks.h"
#include "local/device.h"
#include "local/local_model.h"
#include "local/model_folder.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"

namespace quire {

// How this process was started.
struct RankLaunch {
  int32_t rank = 0;
  int32_t size = 0;  // 0: alone
};
// By the variables that mpirun, or Slurm with --mpi, sets for what it starts; variable(name) may be null.
RankLaunch FindRankLaunch(const std::function<const char*(const char* name)>& variable);

// MPI, if the module that is linked to it stands beside the program and its library is here.
MpiModule FindMpi();

// This process's end of the group, where the others are processes. Tells them, at the end, that it was that.
class ProcessRanks {
 public:
  // Throws Error(kInvalidArgument), with what is missing, if MPI cannot be used.
  ProcessRanks();
  ~ProcessRanks();
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  MpiRank& mpi() const { return *mpi_; }
  std::shared_ptr<Collective> collective() const { return mpi_; }

 private:
  const std::shared_ptr<MpiRank> mpi_;
};

// A rank's GPU, as all ranks know of it.
struct RankGpu {
  GpuId id = {};
  bool is_usable = false;
};
// The first rank that has none, or one that a rank before it has.
std::optional<int32_t> FirstWithoutGpu(std::span<const RankGpu> gpus);

// By all ranks: the calling thread of each uses the GPU of its number on its machine from now on. Throws
// DeviceError, by the name of the first rank that has none of its own.
void TakeGpus(MpiRank& ranks);

// What a rank has on its machine.
struct RankRoom {
  DeviceKind device = DeviceKind::kCpu;
  int32_t num_threads = 1;
  ByteOffset memory_limit = {};
};

// Of rank 0: the others begin to load the same, with `options` but for what each has of its own; groups, which
// options.dp_size says, to speculate so.
void TellOptions(const RunnerOptions& options, const Speculation& speculation, Collective& ranks);
// `options` with a pool that all ranks have room for: `plan` is this rank's. Throws DeviceError if a rank has
// another model.
RunnerOptions WithCommonPool(RunnerOptions options, const ModelConfig& config,
                             const MemoryPlan& plan, Collective& ranks);

// Of the others: loads what rank 0's next runner needs and runs what it says, or serves the runner of a group,
// until it ends; false if there will be none any more. Throws DeviceError if a rank fails.
bool FollowRunner(const OpenedModel& model, const RankRoom& room,
                  const std::shared_ptr<Collective>& ranks);

}  // namespace quire

#endif  // QUIRE_LOCAL_RANKS_H_
