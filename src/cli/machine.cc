#include "cli/machine.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number behind `key` at the beginning of a line.
std::optional<int64_t> NumberOf(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  int64_t number = 0;
  for (std::string line_key; in >> line_key; in.ignore(kUnlimited, '\n')) {
    if (line_key == key && in >> number) return number;
  }
  return std::nullopt;
}

// A file that is one number; nothing for "max" or no such file.
std::optional<int64_t> NumberIn(const fs::path& file) {
  std::ifstream in(file);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// The names that the two versions of cgroups have for the same things.
struct CgroupFiles {
  const char* controllers;  // in /proc/self/cgroup
  const char* folder;
  const char* limit;
  const char* usage;
  const char* file_cache;  // in memory.stat: memory that the kernel takes back when it is needed
};
constexpr CgroupFiles kCgroups[] = {
    {"", "sys/fs/cgroup", "memory.max", "memory.current", "file"},
    {"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_cache"},
};

// What one group leaves.
int64_t LeftIn(const fs::path& group, const CgroupFiles& files) {
  const std::optional<int64_t> limit = NumberIn(group / files.limit);
  if (!limit) return kUnlimited;
  const int64_t usage = NumberIn(group / files.usage).value_or(0);
  const int64_t cache = NumberOf(group / "memory.stat", files.file_cache).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - cache));
}

// This process's group among those of one version: "3:cpu,memory:/a/b" -> "a/b". A container may see
// a path that is not there; its own group is then the topmost.
fs::path GroupOf(const fs::path& root, const CgroupFiles& files) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers == files.controllers) return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

// A group is bound by its parents' limits too.
int64_t LeftInCgroups(const fs::path& root, const CgroupFiles& files) {
  int64_t left = kUnlimited;
  fs::path group = GroupOf(root, files);
  while (true) {
    left = std::min(left, LeftIn(root / files.folder / group, files));
    if (group.empty()) return left;
    group = group.parent_path();
  }
}

}  // namespace

ByteOffset AvailableMemory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const std::optional<int64_t> kib = NumberOf(meminfo, "MemAvailable:");
  Require(kib.has_value(), "{}: expected a line MemAvailable, got none", meminfo.string());
  int64_t available = *kib * 1024;
  for (const CgroupFiles& files : kCgroups) {
    available = std::min(available, LeftInCgroups(root, files));
  }
  return ByteOffset(available);
}

// As lscpu knows it: /proc/cpuinfo of an Arm machine has part numbers only.
std::string CpuModel() {
  std::string model = "unknown CPU";
  FILE* lscpu = popen("LC_ALL=C lscpu 2>/dev/null", "r");
  if (lscpu == nullptr) return model;
  constexpr std::string_view kKey = "Model name:";
  for (char line[256]; std::fgets(line, sizeof(line), lscpu) != nullptr;) {
    std::string_view text(line);
    if (!text.starts_with(kKey)) continue;
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ', kKey.size())));
    model = text.substr(0, text.find('\n'));
  }
  pclose(lscpu);
  return model;
}

}  // namespace quire::cli
