// The printed tables, filled from Google Benchmark's results.
//
// Google Benchmark registers, filters, repeats, times and takes medians; its own console output
// prints one line per measurement, and what one looks for here (one thread beside all, one page
// size beside another, the percent of a roof) stands in several of them. So the display is ours,
// and
// --benchmark_filter, --benchmark_out and the rest are the library's.
#ifndef QUIRE_BENCH_TABLES_H_
#define QUIRE_BENCH_TABLES_H_

#include <benchmark/benchmark.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/roof.h"

namespace quire::bench {

enum class Effort { kQuick, kFull };

// The page sizes that stand beside each other.
inline constexpr int32_t kPageSizes[] = {1, 16, 64};

// Names of counters, from the benchmarks to the tables and to --benchmark_out.
inline constexpr const char* kBytes = "bytes";                 // per iteration
inline constexpr const char* kFlops = "flops";                 // per iteration
inline constexpr const char* kReadRoof = "read_roof_bytes/s";  // measured just before
inline constexpr const char* kFmaRoof = "fma_roof_flops/s";    // measured just before
inline constexpr const char* kFmaAfter = "fma_after_flops/s";  // a short try just after
inline constexpr const char* kEntries = "entries";             // written per iteration

// Says on stderr what is being measured: on a terminal in one line that is overwritten, elsewhere
// one line for each name up to its second '/'.
void ShowProgress(std::string_view name);

// The first part of a name is the table, the last one or two are columns, the rest is the row:
//   attention/<shape>/p<page size>
//   sparse/<shape>/p<page size>
//   gemm/<shape>/r<rows>
//       one row each, printed together when all are known: all percents are of the same roofs
//   <form>/b<num_seqs>/s<context>/p<page size>/<serial|parallel>
//       one row for all page sizes, printed when the next begins
class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  // A row of a table of percents of roofs.
  struct RoofRow {
    std::string shape, size, label;  // size: of a page, or rows of x
    double seconds = 0, bytes = 0, flops = 0;
    double fma_after = 0;  // operations per second
  };
  struct ExportCell {
    double entries = 0, serial_us = 0, parallel_us = 0;
  };

  void AddRoofRow(const Run& median, const std::vector<std::string>& name);
  void AddExport(const Run& median, const std::vector<std::string>& name);
  void PrintRoofTable();
  void PrintExportHeader(const std::string& title) const;
  void PrintExportRow();

  std::string roof_table_;         // "attention" or "gemm": which one is being filled
  std::vector<cpu::Roofs> roofs_;  // measured before each of its rows
  std::vector<RoofRow> roof_rows_;

  std::string form_;  // of the row at hand
  std::string num_seqs_, context_;
  std::map<std::string, ExportCell> cells_;  // by page size
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_TABLES_H_
