#include "cli/doctor/machine_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "cli/doctor/cuda_driver.h"
#include "cli/doctor/ranks_report.h"
#include "device/cpu_model.h"
#include "device/thread_pool.h"
#include "local/machine.h"
#include "runner/memory_plan.h"

namespace quire::cli {
namespace {

using Level = Finding::Level;

constexpr ByteOffset kLeastMemory{int64_t{64} << 20};  // less holds no model
constexpr ByteOffset kLittleMemory{int64_t{2} << 30};  // a model of 1B parameters in bf16
constexpr int64_t kFewFiles = 1024;                    // a server has a file for each connection

std::optional<ByteOffset> AvailableIfKnown(const std::filesystem::path& root) {
  try {
    return AvailableMemory(root);
  } catch (const Error&) {
    return std::nullopt;  // Judge says so
  }
}

Finding JudgeMemory(const MachineReport& machine) {
  if (!machine.memory_available) {
    return {Level::kError, "/proc/meminfo does not say how much memory is available"};
  }
  const std::string available = FormatBytes(*machine.memory_available);
  if (*machine.memory_available < kLeastMemory) {
    return {Level::kError, fmt::format("only {} of memory available: no model fits", available)};
  }
  if (*machine.memory_available < kLittleMemory) {
    return {Level::kWarning,
            fmt::format("only {} of memory available: enough for small models", available)};
  }
  return {Level::kOk, fmt::format("{} of memory available", available)};
}

Finding JudgeSimd(const MachineReport& machine) {
  const std::string& target = machine.simd_targets.front();
  if (target == "SCALAR" || target == "EMU128") {
    return {Level::kWarning, fmt::format("kernels run without SIMD ({}): slow", target)};
  }
  return {Level::kOk, fmt::format("kernels run on {}", target)};
}

Finding JudgeThreads(const MachineReport& machine) {
  if (machine.cpu_quota && *machine.cpu_quota + 0.01 < machine.threads) {
    return {Level::kWarning,
            fmt::format("a cgroup allows {:g} CPUs, fewer than the {} threads quire would start: "
                        "--threads {:.0f} may be faster",
                        *machine.cpu_quota, machine.threads, std::max(1.0, *machine.cpu_quota))};
  }
  return {Level::kOk, fmt::format("{} threads", machine.threads)};
}

Finding JudgeFiles(const MachineReport& machine) {
  if (machine.open_files < kFewFiles) {
    const int64_t more = std::min(int64_t{65536}, machine.open_files_hard);
    return {Level::kWarning,
            fmt::format("at most {} open files, one for each connection of a server: {}",
                        machine.open_files,
                        more > machine.open_files ? fmt::format("ulimit -n {} raises it", more)
                                                  : "only an administrator can raise it")};
  }
  return {Level::kOk, fmt::format("up to {} open files", machine.open_files)};
}

Finding JudgeHugePages(const MachineReport& machine) {
  if (machine.huge_pages == "never") {
    return {Level::kWarning,
            "transparent huge pages are off: reading weights may be slower (madvise is enough, in "
            "/sys/kernel/mm/transparent_hugepage/enabled)"};
  }
  return {Level::kOk, machine.huge_pages.empty() ? "transparent huge pages: not known"
                                                 : "transparent huge pages can be had"};
}

Finding JudgeBuild(const BuildReport& build) {
  if (!build.sanitizers.empty()) {
    return {Level::kWarning, fmt::format("built with sanitizers ({}): slow", build.sanitizers)};
  }
  if (build.type != "Release" && build.type != "RelWithDebInfo") {
    return {Level::kWarning, fmt::format("a build of type \"{}\", not Release: slow", build.type)};
  }
  if (build.inner_checks || build.faults) {
    return {Level::kWarning, "built for tests, with checks in inner loops: a Release is faster"};
  }
  return {Level::kOk, fmt::format("{} build", build.type)};
}

}  // namespace

MachineReport LookAtMachine(const std::filesystem::path& root) {
  MachineReport report;
  report.cpu = CpuModel();
  report.hardware_threads = static_cast<int32_t>(std::thread::hardware_concurrency());
  report.threads = ThreadPool::DefaultThreads();
  report.cpu_quota = CpuQuota(root);
  report.simd_targets = cpu::SimdTargets();
  report.memory_total = TotalMemory(root);
  report.memory_available = AvailableIfKnown(root);
  report.memory_limit = MemoryLimit(root);
  report.huge_pages = HugePageMode(root);
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    // "Without limit" is the largest number of its type.
    const rlim_t most = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
    report.open_files = static_cast<int64_t>(std::min(files.rlim_cur, most));
    report.open_files_hard = static_cast<int64_t>(std::min(files.rlim_max, most));
  }
  report.cuda = AskCudaDriver();
  report.ranks = LookAtRanks(root);
  return report;
}

std::vector<Finding> Judge(const MachineReport& machine, const BuildReport& build) {
  return {JudgeMemory(machine), JudgeSimd(machine),      JudgeThreads(machine),
          JudgeFiles(machine),  JudgeHugePages(machine), JudgeBuild(build)};
}

}  // namespace quire::cli
