// What `quire bench` found out, as tables, as JSON and as a plot.
#ifndef QUIRE_CLI_BENCH_REPORT_H_
#define QUIRE_CLI_BENCH_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/loadgen/svg_plot.h"
#include "cli/measure.h"
#include "kernels/cpu/roof.h"
#include "local/device.h"
#include "model/config.h"
#include "runner/layer_drafter.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"

namespace quire::cli {

// Another model, of which the cost per token is measured beside that of the report's own.
struct ComparedModel {
  std::string model = {};  // folder
  ModelConfig config = {};
  MemoryPlan plan = {};
  std::vector<Measurement> contexts = {};  // as many as the report's, in its order
};

// Steps with drafts, beside those of the report without.
struct SpeculationReport {
  std::string algorithm = {};
  TreeShape shape = {};
  std::optional<double> simulated_length = {};  // tokens of a draft are right by decree
  std::vector<DraftMeasurement> rows = {};      // as many as report.decode, in its order
};

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
  std::optional<ComparedModel> compared = {};
  std::optional<SpeculationReport> speculation = {};
};

std::string ToTables(const BenchReport& report);
// Time per token over the context, of all models.
Plot ToPlot(const BenchReport& report);
nlohmann::ordered_json ToJson(const BenchReport& report);

}  // namespace quire::cli

#endif  // QUIRE_CLI_BENCH_REPORT_H_
