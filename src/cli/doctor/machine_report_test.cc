#include "cli/doctor/machine_report.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/test_files.h"

namespace quire::cli {
namespace {

using Level = Finding::Level;

constexpr int64_t kGiB = int64_t{1} << 30;

MachineReport GoodMachine() {
  MachineReport machine;
  machine.threads = 4;
  machine.simd_targets = {"AVX2", "SSE2"};
  machine.memory_available = ByteOffset(8 * kGiB);
  machine.huge_pages = "madvise";
  machine.open_files = 4096;
  machine.open_files_hard = 8192;
  return machine;
}

const BuildReport kGoodBuild{.type = "Release"};

// The findings that are not ok.
std::vector<Finding> Complaints(const MachineReport& machine, const BuildReport& build) {
  std::vector<Finding> findings = Judge(machine, build);
  std::erase_if(findings, [](const Finding& finding) { return finding.level == Level::kOk; });
  return findings;
}

// The only complaint begins with this level and has these words.
void ExpectOne(const std::vector<Finding>& complaints, Level level, const std::string& words) {
  ASSERT_EQ(complaints.size(), 1u) << words;
  EXPECT_EQ(complaints[0].level, level) << words;
  EXPECT_NE(complaints[0].text.find(words), std::string::npos) << complaints[0].text;
}

TEST(MachineReportTest, AGoodMachineHasNoComplaint) {
  EXPECT_TRUE(Complaints(GoodMachine(), kGoodBuild).empty());
  EXPECT_EQ(Judge(GoodMachine(), kGoodBuild).size(), 6u);
}

TEST(MachineReportTest, MemoryThatHoldsNoModelIsAnError) {
  MachineReport machine = GoodMachine();
  machine.memory_available = ByteOffset(kGiB);
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "1.00 GiB");
  machine.memory_available = ByteOffset(kGiB / 64);
  ExpectOne(Complaints(machine, kGoodBuild), Level::kError, "no model fits");
  machine.memory_available = std::nullopt;
  ExpectOne(Complaints(machine, kGoodBuild), Level::kError, "/proc/meminfo");
}

TEST(MachineReportTest, WhatMakesItSlowIsAWarning) {
  MachineReport machine = GoodMachine();
  machine.simd_targets = {"EMU128"};
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "EMU128");
  machine = GoodMachine();
  machine.cpu_quota = 1.5;
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "1.5 CPUs");
  machine.cpu_quota = 4;
  EXPECT_TRUE(Complaints(machine, kGoodBuild).empty());
  machine.huge_pages = "never";
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "huge pages are off");
  ExpectOne(Complaints(GoodMachine(), {.type = "Debug"}), Level::kWarning, "Debug");
  ExpectOne(Complaints(GoodMachine(), {.type = "Release", .sanitizers = "address"}),
            Level::kWarning, "address");
  ExpectOne(Complaints(GoodMachine(), {.type = "RelWithDebInfo", .inner_checks = true}),
            Level::kWarning, "inner loops");
}

TEST(MachineReportTest, FewOpenFilesAreAWarningWithTheRemedy) {
  MachineReport machine = GoodMachine();
  machine.open_files = 256;
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "ulimit -n 8192");
  machine.open_files_hard = 256;
  ExpectOne(Complaints(machine, kGoodBuild), Level::kWarning, "administrator");
}

TEST(MachineReportTest, AKernelThatSaysNothingIsReportedAndNotThrown) {
  const TempDir empty;
  const MachineReport machine = LookAtMachine(empty.path());
  EXPECT_EQ(machine.memory_available, std::nullopt);
  EXPECT_EQ(machine.memory_total, std::nullopt);
  EXPECT_EQ(machine.huge_pages, "");
}

TEST(MachineReportTest, ThisMachineIsSeen) {
  const MachineReport machine = LookAtMachine();
  EXPECT_GT(machine.threads, 0);
  EXPECT_GT(machine.open_files, 0);
  ASSERT_FALSE(machine.simd_targets.empty());
  EXPECT_EQ(machine.simd_targets.front(), cpu::SimdTarget());
  EXPECT_LE(machine.memory_available.value().raw(), machine.memory_total.value().raw());
}

TEST(MachineReportTest, EveryLibraryHasAVersion) {
  for (const auto& [name, version] : LibraryVersions()) {
    EXPECT_TRUE(
        std::any_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; }))
        << name << " " << version;
  }
  EXPECT_NE(ThisBuild().compiler, "");
}

}  // namespace
}  // namespace quire::cli
