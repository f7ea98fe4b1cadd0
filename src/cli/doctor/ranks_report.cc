#include "cli/doctor/ranks_report.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <system_error>

#include "local/ranks.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Of NCCL's interface since 2.0: 0 is success, and since 2.9 the number is 10000 * major + 100 * minor + patch.
RankLibrary AskNccl() {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return {.problem = "no libnccl.so.2, which comes with NVIDIA's libnccl2"};
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  const bool known = get_version != nullptr && get_version(&version) == 0;
  dlclose(library);
  if (!known) return {.problem = "libnccl.so.2 does not say its version"};
  return {.version =
              fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

// "node0", "node1", ...
int32_t NumaNodes(const fs::path& root) {
  int32_t count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    count +=
        name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos;
  }
  return count;
}

}  // namespace

RanksReport LookAtRanks(const fs::path& root) {
  const MpiModule mpi = FindMpi();
  return {.mpi = {.version = mpi.library, .problem = mpi.problem},
          .nccl = AskNccl(),
          .numa_nodes = NumaNodes(root)};
}

}  // namespace quire::cli
