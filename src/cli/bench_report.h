// What `quire bench` found out, as tables and as JSON.
#ifndef QUIRE_CLI_BENCH_REPORT_H_
#define QUIRE_CLI_BENCH_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "kernels/cpu/roof.h"
#include "local/device.h"
#include "model/config.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"

namespace quire::cli {

struct BenchReport {
  std::string command_line = {};
  std::string model = {};  // folder
  ModelConfig config = {};
  RunnerOptions options = {};
  MemoryPlan plan = {};
  DeviceKind device = DeviceKind::kCpu;
  std::string device_name = {};
  cpu::Roofs roofs = {};
  std::vector<Measurement> prefill = {};
  std::vector<Measurement> decode = {};
  std::vector<Measurement> contexts = {};  // decode of one sequence
};

std::string ToTables(const BenchReport& report);
nlohmann::ordered_json ToJson(const BenchReport& report);

}  // namespace quire::cli

#endif  // QUIRE_CLI_BENCH_REPORT_H_
