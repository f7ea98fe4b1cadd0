#include "local/machine.h"

#include <gtest/gtest.h>

#include <string>

#include "io/test_files.h"

namespace quire {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A machine with 4096 MiB available, and its /proc and /sys in a folder.
class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    Write("proc/meminfo", "MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  4194304 kB\n");
  }

  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir_.path() / name).parent_path());
    dir_.Write(name, text);
  }
  int64_t AvailableMiB() { return AvailableMemory(dir_.path()).raw() / kMiB; }

  TempDir dir_;
};

TEST_F(MachineTest, WithoutCgroupsTheKernelsEstimateHolds) { EXPECT_EQ(AvailableMiB(), 4096); }

TEST_F(MachineTest, AKernelThatSaysNothingIsRefused) {
  Write("proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_THROW(AvailableMiB(), Error);
}

TEST_F(MachineTest, ACgroupLeavesItsLimitLessWhatIsInUseAndNotFileCache) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", std::to_string(1000 * kMiB));
  EXPECT_EQ(AvailableMiB(), 1000);
  Write("sys/fs/cgroup/a/b/memory.current", std::to_string(700 * kMiB));
  EXPECT_EQ(AvailableMiB(), 300);
  Write("sys/fs/cgroup/a/b/memory.stat",
        "anon 100\nfile " + std::to_string(600 * kMiB) + "\nfile_dirty 0\n");
  EXPECT_EQ(AvailableMiB(), 900);
}

TEST_F(MachineTest, ParentsBindToo) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("sys/fs/cgroup/a/memory.max", std::to_string(500 * kMiB));
  EXPECT_EQ(AvailableMiB(), 500);
}

TEST_F(MachineTest, CgroupsOfVersionOneCount) {
  Write("proc/self/cgroup", "5:cpu:/x\n4:memory:/a\n0::/\n");
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(800 * kMiB));
  Write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", std::to_string(200 * kMiB));
  Write("sys/fs/cgroup/memory/a/memory.stat", "total_cache " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(AvailableMiB(), 700);
}

TEST_F(MachineTest, AContainerThatDoesNotSeeItsPathHasItsLimitAtTheTop) {
  Write("proc/self/cgroup", "0::/outside/of/here\n");
  Write("sys/fs/cgroup/memory.max", std::to_string(600 * kMiB));
  EXPECT_EQ(AvailableMiB(), 600);
}

TEST_F(MachineTest, TotalsAndLimitsAreReadWhereTheyAre) {
  EXPECT_EQ(TotalMemory(dir_.path()).value().raw() / kMiB, 8192);
  EXPECT_EQ(MemoryLimit(dir_.path()), std::nullopt);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(MemoryLimit(dir_.path()), std::nullopt);
  Write("sys/fs/cgroup/a/memory.max", std::to_string(500 * kMiB));
  EXPECT_EQ(MemoryLimit(dir_.path()).value().raw() / kMiB, 500);
  Write("proc/meminfo", "MemFree: 1 kB\n");
  EXPECT_EQ(TotalMemory(dir_.path()), std::nullopt);
}

TEST_F(MachineTest, VersionOnesLargestNumberIsNoLimit) {
  Write("proc/self/cgroup", "4:memory:/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(MemoryLimit(dir_.path()), std::nullopt);
  EXPECT_EQ(AvailableMiB(), 4096);
}

TEST_F(MachineTest, TheLeastCpuQuotaOfAllGroupsHolds) {
  EXPECT_EQ(CpuQuota(dir_.path()), std::nullopt);
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(dir_.path()), std::nullopt);
  Write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(CpuQuota(dir_.path()), 1.5);
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(CpuQuota(dir_.path()), 1.5);
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(CpuQuota(dir_.path()), 0.5);
}

TEST_F(MachineTest, TheHugePageModeIsTheOneInBrackets) {
  EXPECT_EQ(HugePageMode(dir_.path()), "");
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_EQ(HugePageMode(dir_.path()), "madvise");
}

TEST(MachineHereTest, ThisMachineHasMemory) { EXPECT_GT(AvailableMemory().raw(), kMiB); }

}  // namespace
}  // namespace quire
