// The machine that this process runs on.
#ifndef QUIRE_CLI_MACHINE_H_
#define QUIRE_CLI_MACHINE_H_

#include <filesystem>
#include <string>

#include "base/units.h"

namespace quire::cli {

// Memory that can be taken now without swapping: what the kernel estimates (MemAvailable), or what
// the memory cgroups of this process, version 1 or 2, leave if that is less. `root` is where /proc
// and /sys are. Throws Error(kInvalidArgument) if the kernel does not say.
ByteOffset AvailableMemory(const std::filesystem::path& root = "/");

// "Neoverse-V1", or "unknown CPU".
std::string CpuModel();

}  // namespace quire::cli

#endif  // QUIRE_CLI_MACHINE_H_
