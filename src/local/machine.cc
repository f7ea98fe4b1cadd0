#include "local/machine.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace quire {
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

// What one group allows in all. Version 1 has a number near the largest for "no limit".
std::optional<int64_t> LimitOf(const fs::path& group, const CgroupFiles& files) {
  constexpr int64_t kNoLimit = kUnlimited - (int64_t{1} << 20);
  const std::optional<int64_t> limit = NumberIn(group / files.limit);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

// What one group leaves.
int64_t LeftIn(const fs::path& group, const CgroupFiles& files) {
  const std::optional<int64_t> limit = LimitOf(group, files);
  if (!limit) return kUnlimited;
  const int64_t usage = NumberIn(group / files.usage).value_or(0);
  const int64_t cache = NumberOf(group / "memory.stat", files.file_cache).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - cache));
}

// The CPUs that one group allows: version 2 has "QUOTA PERIOD" in one file, version 1 in two.
std::optional<double> QuotaOf(const fs::path& group) {
  std::ifstream both(group / "cpu.max");
  double quota = 0, period = 0;
  if (both >> quota >> period && period > 0) return quota / period;
  const std::optional<int64_t> quota_us = NumberIn(group / "cpu.cfs_quota_us");
  const std::optional<int64_t> period_us = NumberIn(group / "cpu.cfs_period_us");
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

// This process's group among those of one version: "3:cpu,memory:/a/b" -> "a/b". A container may see
// a path that is not there; its own group is then the topmost.
fs::path GroupOf(const fs::path& root, std::string_view controllers) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view found = std::string_view(line).substr(first + 1, second - first - 1);
    if (found == controllers) return fs::path(line.substr(second + 1)).relative_path();
  }
  return {};
}

// A group is bound by its parents' limits too: calls fn for all of them.
template <class Fn>
void ForEachGroup(const fs::path& root, std::string_view controllers, const char* folder, Fn fn) {
  fs::path group = GroupOf(root, controllers);
  while (true) {
    fn(root / folder / group);
    if (group.empty()) return;
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
    ForEachGroup(root, files.controllers, files.folder, [&](const fs::path& group) {
      available = std::min(available, LeftIn(group, files));
    });
  }
  return ByteOffset(available);
}

std::optional<ByteOffset> TotalMemory(const fs::path& root) {
  const std::optional<int64_t> kib = NumberOf(root / "proc/meminfo", "MemTotal:");
  if (!kib) return std::nullopt;
  return ByteOffset(*kib * 1024);
}

std::optional<ByteOffset> MemoryLimit(const fs::path& root) {
  int64_t least = kUnlimited;
  for (const CgroupFiles& files : kCgroups) {
    ForEachGroup(root, files.controllers, files.folder, [&](const fs::path& group) {
      least = std::min(least, LimitOf(group, files).value_or(kUnlimited));
    });
  }
  if (least == kUnlimited) return std::nullopt;
  return ByteOffset(least);
}

std::optional<double> CpuQuota(const fs::path& root) {
  std::optional<double> least;
  const auto add = [&](const fs::path& group) {
    const std::optional<double> quota = QuotaOf(group);
    if (quota) least = std::min(*quota, least.value_or(*quota));
  };
  ForEachGroup(root, "", "sys/fs/cgroup", add);
  ForEachGroup(root, "cpu,cpuacct", "sys/fs/cgroup/cpu,cpuacct", add);
  ForEachGroup(root, "cpu", "sys/fs/cgroup/cpu", add);
  return least;
}

// "always [madvise] never": the one in brackets.
std::string HugePageMode(const fs::path& root) {
  std::ifstream in(root / "sys/kernel/mm/transparent_hugepage/enabled");
  for (std::string word; in >> word;) {
    if (word.starts_with('[') && word.ends_with(']')) return word.substr(1, word.size() - 2);
  }
  return {};
}

}  // namespace quire
