#include "cli/ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/error.h"
#include "cli/colour.h"
#include "cli/model_name.h"
#include "local/ranks.h"

namespace quire::cli {
namespace {

// By when rank 0 has said why all end. The launcher ends every rank once one has ended.
constexpr std::chrono::seconds kLastWords{5};

RankLaunch ThisLaunch() {
  return FindRankLaunch([](const char* name) { return std::getenv(name); });
}

// One process needs nobody. On a GPU it makes the calls that several would, if it can.
bool IsAlone(const RankLaunch& launch, const ModelFlags& flags) {
  if (launch.size != 1 || flags.tp_size > 1 || flags.dp_size > 1) return launch.size == 0;
  return flags.device == DeviceKind::kCpu || FindMpi().calls == nullptr ||
         !GpuRanksProblem().empty();
}

void Follow(const ModelFlags& flags, const ProcessRanks& ranks) {
  // Rank 0 lets requests end first, and then says so.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  if (flags.device == DeviceKind::kCuda) TakeGpus(ranks.mpi());
  const OpenedModel model = OpenModel(FindModel(flags).folder, flags.load_format);
  const RunnerOptions own = MakeOptions(flags, {});
  const RankRoom room{
      .device = flags.device, .num_threads = own.num_threads, .memory_limit = own.memory_limit};
  while (FollowRunner(model, room, ranks.collective())) {
  }
}

// Says what rank 0 cannot: of this rank, or that rank 0 is gone.
int FollowToTheEnd(const ModelFlags& flags, const ProcessRanks& ranks) {
  MpiRank& mpi = ranks.mpi();
  std::string reason;
  try {
    Follow(flags, ranks);
    return 0;
  } catch (const std::exception& error) {
    reason = error.what();
  }
  mpi.Fail(reason);
  const MpiRank::Failure failure = mpi.failure().value();
  if (failure.rank == mpi.rank() || (failure.rank == 0 && failure.was_silent)) {
    std::fputs(fmt::format("{} {}\n", ErrorPrefix(), reason).c_str(), stderr);
  }
  mpi.AwaitEndOfRankZero(kLastWords);
  return 1;
}

}  // namespace

std::string ErrorPrefix() {
  const int32_t rank = ThisLaunch().rank;
  return Red(rank == 0 ? "quire: error:" : fmt::format("quire: rank {}: error:", rank));
}

std::shared_ptr<Collective> RanksOf(const ModelFlags& flags) {
  return flags.ranks == nullptr ? nullptr : flags.ranks->collective();
}

void JoinRanks(ModelFlags& flags) {
  const RankLaunch launch = ThisLaunch();
  if (IsAlone(launch, flags)) return;
  try {
    const bool has_groups = flags.dp_size > 1;
    const int32_t size = has_groups ? flags.dp_size : flags.tp_size;
    Require(launch.size == size, "{}: expected {}, as many ranks as processes were started, got {}",
            has_groups ? "--dp-size" : "--tp-size", launch.size, size);
    flags.ranks = std::make_shared<ProcessRanks>();
    Require(flags.ranks->mpi().size() == launch.size,
            "MPI: expected to find the {} processes that were started, got {}: is it the MPI of "
            "what started them?",
            launch.size, flags.ranks->mpi().size());
  } catch (const Error&) {
    if (launch.rank == 0) throw;
    throw Exit{2};  // rank 0 says the same
  }
  if (flags.ranks->mpi().rank() == 0) {
    if (flags.device == DeviceKind::kCuda) TakeGpus(flags.ranks->mpi());
    return;
  }
  const int code = FollowToTheEnd(flags, *flags.ranks);
  flags.ranks.reset();
  throw Exit{code};
}

}  // namespace quire::cli
