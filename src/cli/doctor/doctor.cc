#include "cli/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/doctor/machine_report.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "device/thread_pool.h"
#include "local/device.h"
#include "runner/memory_plan.h"

namespace quire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Level = Finding::Level;

constexpr ByteOffset kRoofMemory{int64_t{3} << 29};  // what measuring takes, 1 GiB, with some room

struct DoctorFlags {
  DeviceKind device = DeviceKind::kCpu;
  bool quick = false;
  bool json = false;
};

const char* LevelName(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarning ? "warning" : "error";
}

// One pass: under a second on two cores.
std::optional<cpu::Roofs> MeasureRoofs(const MachineReport& machine) {
  if (machine.memory_available.value_or(ByteOffset(0)) < kRoofMemory) return std::nullopt;
  ThreadPool threads(machine.threads);
  return cpu::RoofMeter(threads).Measure(1);
}

// With --device cuda the GPU's, and what keeps it from being used is an error.
void LookAtDevice(const DoctorFlags& flags, MachineReport& machine,
                  std::vector<Finding>& findings) {
  std::string problem = DeviceProblem(flags.device);
  if (problem.empty()) problem = ProductsProblem(flags.device);
  if (!problem.empty()) {
    findings.push_back({Level::kError, fmt::format("--device cuda: {}", problem)});
  } else if (!flags.quick) {
    try {
      machine.roofs = MeasureRoofs(flags.device, machine.threads, /*repeats=*/1);
    } catch (const Error& error) {  // a GPU that others have filled
      findings.push_back({Level::kWarning, fmt::format("--device cuda: {}", error.what())});
    }
  }
}

// ---- Text ----

std::string BytesOr(const std::optional<ByteOffset>& bytes, const char* otherwise) {
  return bytes ? FormatBytes(*bytes) : otherwise;
}

std::string CudaText(const CudaDriver& cuda) {
  const std::string driver = cuda.problem.empty()
                                 ? fmt::format("driver for CUDA {}, {} device(s): {}", cuda.version,
                                               cuda.devices.size(), fmt::join(cuda.devices, ", "))
                                 : cuda.problem;
  if (!IsBuiltWithCuda()) return "not compiled in; " + driver;
  const std::string problem = DeviceProblem(DeviceKind::kCuda);
  return (problem.empty() ? "yes, for " + DeviceName(DeviceKind::kCuda)
                          : "compiled in, but cannot be used: " + problem) +
         "; " + driver;
}

std::string LibraryText(const RankLibrary& library, const char* used_for) {
  return fmt::format("{}: {}", library.problem.empty() ? library.version : "no, " + library.problem,
                     used_for);
}

std::string TopologyText(const MachineReport& machine) {
  const size_t gpus = machine.cuda.devices.size();
  const std::string nodes = machine.ranks.numa_nodes == 0
                                ? "NUMA nodes unknown"
                                : fmt::format("{} NUMA node(s)", machine.ranks.numa_nodes);
  if (gpus < 2) return fmt::format("{}, {}", nodes, gpus == 0 ? "no GPU" : "one GPU");
  return fmt::format("{}, {} GPUs, {} of {} pairs reach each other's memory", nodes, gpus,
                     machine.cuda.peers / 2, gpus * (gpus - 1) / 2);
}

std::string SimdText(const std::vector<std::string>& targets) {
  std::string text = targets.front() + " is used";
  if (targets.size() == 1) return text;
  return text +
         fmt::format("; {} would work too", fmt::join(targets.begin() + 1, targets.end(), ", "));
}

std::string RoofsText(const std::optional<cpu::Roofs>& roofs) {
  if (!roofs) return "not measured";
  return fmt::format("{:.1f} GB/s read, {:.1f} GFLOP/s multiply-add",
                     roofs->read_bytes_per_s * 1e-9, roofs->flops_per_s * 1e-9);
}

std::string LibrariesText() {
  std::string text;
  for (const auto& [name, version] : LibraryVersions()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, version);
  }
  return text;
}

std::string BuildText(const BuildReport& build) {
  std::string text = fmt::format("{}, {}", build.type, build.compiler);
  if (!build.sanitizers.empty()) text += ", sanitizers " + build.sanitizers;
  if (build.inner_checks) text += ", checks in inner loops";
  if (build.faults) text += ", faults for tests";
  return text;
}

NamedTexts Lines(const MachineReport& machine, const BuildReport& build) {
  return {
      {"quire", QUIRE_VERSION},
      {"build", BuildText(build)},
      {"libraries", LibrariesText()},
      {"CPU", fmt::format(
                  "{}, {} hardware threads, {} for this process{}", machine.cpu,
                  machine.hardware_threads, machine.threads,
                  machine.cpu_quota ? fmt::format(", cgroup quota {:g}", *machine.cpu_quota) : "")},
      {"SIMD", SimdText(machine.simd_targets)},
      {"speed", RoofsText(machine.roofs)},
      {"memory", fmt::format("{} in all, {} available, cgroup limit {}",
                             BytesOr(machine.memory_total, "unknown"),
                             BytesOr(machine.memory_available, "unknown"),
                             BytesOr(machine.memory_limit, "none"))},
      {"huge pages", machine.huge_pages.empty() ? "unknown" : machine.huge_pages},
      {"open files",
       fmt::format("{}, can be raised to {}", machine.open_files, machine.open_files_hard)},
      {"backend cpu", "yes"},
      {"backend cuda", CudaText(machine.cuda)},
      {"MPI",
       LibraryText(machine.ranks.mpi, "--tp-size and --dp-size over processes of mpirun or Slurm")},
      {"NCCL", LibraryText(machine.ranks.nccl, "--tp-size with a GPU for every rank")},
      {"topology", TopologyText(machine)},
  };
}

std::string ToText(const MachineReport& machine, const BuildReport& build,
                   const std::vector<Finding>& findings) {
  std::string text;
  for (const auto& [name, value] : Lines(machine, build)) {
    text += fmt::format("{:<13} {}\n", name, value);
  }
  text += "\n";
  for (const Finding& finding : findings) {
    text += fmt::format("{}: {}\n", LevelName(finding.level), finding.text);
  }
  return text;
}

// ---- JSON ----

OrderedJson OrNull(const std::optional<ByteOffset>& bytes) {
  return bytes ? OrderedJson(bytes->raw()) : OrderedJson();
}

OrderedJson BuildToJson(const BuildReport& build) {
  OrderedJson libraries = OrderedJson::object();
  for (const auto& [name, version] : LibraryVersions()) libraries[name] = version;
  return {{"version", QUIRE_VERSION},           {"type", build.type},
          {"compiler", build.compiler},         {"sanitizers", build.sanitizers},
          {"inner_checks", build.inner_checks}, {"faults", build.faults},
          {"libraries", std::move(libraries)}};
}

OrderedJson MachineToJson(const MachineReport& machine) {
  OrderedJson json{{"cpu", machine.cpu},
                   {"hardware_threads", machine.hardware_threads},
                   {"threads", machine.threads},
                   {"cpu_quota", nullptr},
                   {"simd_targets", machine.simd_targets},
                   {"memory_total_bytes", OrNull(machine.memory_total)},
                   {"memory_available_bytes", OrNull(machine.memory_available)},
                   {"memory_limit_bytes", OrNull(machine.memory_limit)},
                   {"huge_pages", machine.huge_pages},
                   {"open_files", machine.open_files},
                   {"open_files_hard", machine.open_files_hard},
                   {"read_gb_per_s", nullptr},
                   {"multiply_add_gflop_per_s", nullptr}};
  if (machine.cpu_quota) json["cpu_quota"] = *machine.cpu_quota;
  if (machine.roofs) {
    json["read_gb_per_s"] = machine.roofs->read_bytes_per_s * 1e-9;
    json["multiply_add_gflop_per_s"] = machine.roofs->flops_per_s * 1e-9;
  }
  return json;
}

OrderedJson ToJson(const MachineReport& machine, const BuildReport& build,
                   const std::vector<Finding>& findings) {
  OrderedJson json;
  json["build"] = BuildToJson(build);
  json["machine"] = MachineToJson(machine);
  json["backends"] = {
      {"cpu", {{"compiled_in", true}}},
      {"cuda",
       {{"compiled_in", IsBuiltWithCuda()},
        {"usable", DeviceProblem(DeviceKind::kCuda).empty()},
        {"problem", IsBuiltWithCuda() ? DeviceProblem(DeviceKind::kCuda) : machine.cuda.problem},
        {"driver", machine.cuda.version},
        {"devices", machine.cuda.devices}}}};
  const auto library = [](const RankLibrary& each) {
    return OrderedJson{{"version", each.version}, {"problem", each.problem}};
  };
  json["ranks"] = {{"mpi", library(machine.ranks.mpi)},
                   {"nccl", library(machine.ranks.nccl)},
                   {"numa_nodes", machine.ranks.numa_nodes},
                   {"gpu_peers", machine.cuda.peers}};
  json["findings"] = OrderedJson::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"level", LevelName(finding.level)}, {"text", finding.text}});
  }
  return json;
}

void RunDoctor(const DoctorFlags& flags) {
  MachineReport machine = LookAtMachine();
  const bool on_cpu = flags.device == DeviceKind::kCpu;
  if (!flags.quick && on_cpu) machine.roofs = MeasureRoofs(machine);
  const BuildReport build = ThisBuild();
  std::vector<Finding> findings = Judge(machine, build);
  if (!on_cpu) LookAtDevice(flags, machine, findings);
  WriteResult(flags.json ? ToJson(machine, build, findings).dump(2) + "\n"
                         : ToText(machine, build, findings));
  const bool any_error = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.level == Level::kError;
  });
  if (any_error) throw Exit{1};
}

void AddDoctorFlags(FlagReader& reader, DoctorFlags& flags) {
  reader
      .Add({"--device", "DEVICE", "cpu", "What is to compute, and is measured: cpu or cuda"},
           flags.device, ParseDevice)
      .Twin();
  reader.AddSwitch("--quick", flags.quick, "Measure nothing: no read bandwidth, no arithmetic");
  reader.AddSwitch("--json", flags.json, "Print the same as JSON");
}

}  // namespace

void AddDoctor(CLI::App& quire) {
  AddCommand(
      quire,
      {"doctor", "Show what this machine and this build are like, and what stands in the way",
       "Examples:\n"
       "  quire doctor\n"
       "  quire doctor --quick --json\n"
       "  quire doctor --device cuda\n"
       "\n"
       "Looks at the CPU, its SIMD instructions, memory, limits of cgroups and of open files,\n"
       "backends and versions, measures for about a second how fast memory is read and how many\n"
       "multiply-adds are done, and says for each thing that matters whether it is ok. Ends with "
       "0,\n"
       "or with 1 after an error: something that keeps quire from running.\n"},
      AddDoctorFlags, RunDoctor);
}

}  // namespace quire::cli
