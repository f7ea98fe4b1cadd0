// What `quire bench --url` found out, as a table, as JSON and as a plot.
#ifndef QUIRE_CLI_LOADGEN_LOAD_REPORT_H_
#define QUIRE_CLI_LOADGEN_LOAD_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/loadgen/load_client.h"
#include "cli/loadgen/load_run.h"
#include "cli/loadgen/load_stats.h"
#include "cli/loadgen/svg_plot.h"
#include "cli/loadgen/workload.h"

namespace quire::cli {

struct LoadReport {
  std::string command_line = {};  // without the API key
  std::string cpu = {};           // of the machine that sent
  int num_threads = 0;            // that it has
  LoadTarget target = {};
  WorkloadOptions workload = {};
  int64_t warmup = 0;
  std::vector<LoadResult> runs = {};
  std::vector<LoadSummary> summaries = {};  // of each run

  bool all_failed() const;   // something failed, and nothing went well
  bool was_stopped() const;  // by the user
};

std::string ToTables(const LoadReport& report);
nlohmann::ordered_json ToJson(const LoadReport& report);
Plot ToPlot(const LoadReport& report);

// "concurrency 16", or "2.5 requests/s".
std::string ShapeName(const LoadShape& shape);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_REPORT_H_
