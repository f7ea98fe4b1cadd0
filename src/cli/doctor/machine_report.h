// What `quire doctor` looks at: the machine, its limits, and this build.
#ifndef QUIRE_CLI_DOCTOR_MACHINE_REPORT_H_
#define QUIRE_CLI_DOCTOR_MACHINE_REPORT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "kernels/cpu/roof.h"

namespace quire::cli {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Of the CUDA driver, asked through libcuda.so.1 if there is one; nothing is linked.
struct CudaDriver {
  std::string problem = {};  // why there is none; empty if there is
  std::string version = {};  // "12.4", of the driver's interface
  std::vector<std::string> devices = {};
  // Pairs of different devices, in both directions, of which the one can read the other's memory.
  int32_t peers = 0;
};

// MPI or NCCL.
struct RankLibrary {
  std::string version = {};  // "Open MPI v4.1.4"
  std::string problem = {};  // why it cannot be used; empty if it can
};

struct RanksReport {
  RankLibrary mpi = {};
  RankLibrary nccl = {};
  int32_t numa_nodes = 0;  // 0: the kernel does not say
};

struct MachineReport {
  std::string cpu = {};
  int32_t hardware_threads = 0;                // of the machine
  int32_t threads = 0;                         // that this process may run on
  std::optional<double> cpu_quota = {};        // CPUs that a cgroup allows
  std::vector<std::string> simd_targets = {};  // best first: the one that kernels run on
  std::optional<ByteOffset> memory_total = {};
  std::optional<ByteOffset> memory_available = {};  // to this process
  std::optional<ByteOffset> memory_limit = {};      // of its cgroups
  std::string huge_pages = {};  // "always", "madvise", "never"; empty: the kernel does not say
  int64_t open_files = 0;       // how many this process may have
  int64_t open_files_hard = 0;  // up to what it may raise that
  CudaDriver cuda = {};
  RanksReport ranks = {};
  std::optional<cpu::Roofs> roofs = {};  // unless they were not measured
};

// Everything but the roofs. `root` is where /proc and /sys are.
MachineReport LookAtMachine(const std::filesystem::path& root = "/");

// The libraries that this program was built with, by name, and the versions.
NamedTexts LibraryVersions();

struct BuildReport {
  std::string compiler = {};
  std::string type = {};        // "Release", ...
  std::string sanitizers = {};  // "address,undefined", or empty
  bool inner_checks = false;    // QUIRE_DCHECK
  bool faults = false;          // tests can put bugs back
};
BuildReport ThisBuild();

// What to make of it. An error keeps quire from running.
struct Finding {
  enum class Level { kOk, kWarning, kError };

  Level level = Level::kOk;
  std::string text = {};
};
std::vector<Finding> Judge(const MachineReport& machine, const BuildReport& build);

}  // namespace quire::cli

#endif  // QUIRE_CLI_DOCTOR_MACHINE_REPORT_H_
