// The machine that this process runs on.
#ifndef QUIRE_LOCAL_MACHINE_H_
#define QUIRE_LOCAL_MACHINE_H_

#include <filesystem>
#include <optional>
#include <string>

#include "base/units.h"

namespace quire {

// Memory that can be taken now without swapping: what the kernel estimates (MemAvailable), or what
// the memory cgroups of this process, version 1 or 2, leave if that is less. `root` is where /proc
// and /sys are. Throws Error(kInvalidArgument) if the kernel does not say.
ByteOffset AvailableMemory(const std::filesystem::path& root = "/");

// nullopt if the kernel does not say.
std::optional<ByteOffset> TotalMemory(const std::filesystem::path& root = "/");
// The least limit of the memory cgroups of this process; nullopt if there is none.
std::optional<ByteOffset> MemoryLimit(const std::filesystem::path& root = "/");
// The CPUs' worth of time that cgroups leave to this process; nullopt if that is all there is.
std::optional<double> CpuQuota(const std::filesystem::path& root = "/");
// When the kernel gives large pages: "always", "madvise" or "never"; "" if it does not say.
std::string HugePageMode(const std::filesystem::path& root = "/");

}  // namespace quire

#endif  // QUIRE_LOCAL_MACHINE_H_
