#include "bench/tables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "device/cpu_model.h"
#include "device/thread_pool.h"

namespace quire::bench {
namespace {

std::vector<std::string> SplitName(const std::string& name) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = name.find('/', begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(name.substr(begin, end - begin));
  }
  parts.push_back(name.substr(begin));
  return parts;
}

// Three digits or more.
std::string Digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// "33.6M"; 1024 as "1024".
std::string Entries(double n) {
  if (n < 1e4) return fmt::format("{:.0f}", n);
  return n < 1e6 ? Digits(n / 1e3) + "k" : Digits(n / 1e6) + "M";
}

void ClearProgress() {
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r\x1b[K");
}

cpu::Roofs Worst(const cpu::Roofs& a, const cpu::Roofs& b) {
  return {.read_bytes_per_s = std::min(a.read_bytes_per_s, b.read_bytes_per_s),
          .flops_per_s = std::min(a.flops_per_s, b.flops_per_s)};
}

}  // namespace

void ShowProgress(std::string_view name) {
  static std::string last_group;
  if (isatty(STDERR_FILENO)) {
    fmt::print(stderr, "\r\x1b[K... {}", name);
    return;
  }
  const std::string_view group = name.substr(0, name.find('/', name.find('/') + 1));
  if (group == last_group) return;
  last_group = group;
  fmt::print(stderr, "... {}\n", group);
}

bool TableReporter::ReportContext(const Context& context) {
  fmt::print("{}, {} threads, {}, {} build\n", CpuModel(), ThreadPool::DefaultThreads(),
             cpu::SimdTarget(), QUIRE_BUILD_TYPE);
  for (const auto& cache : context.cpu_info.caches) {
    if (cache.type == "Instruction") continue;
    fmt::print("L{} {} KiB{}", cache.level, cache.size >> 10,
               &cache == &context.cpu_info.caches.back() ? "\n" : ", ");
  }
  // A busy machine lowers roofs and results, and not by the same share.
  if (!context.cpu_info.load_avg.empty()) {
    fmt::print("load average {:.1f} at the start\n", context.cpu_info.load_avg[0]);
  }
  std::fflush(stdout);
  return true;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (run.error_occurred) {
      ClearProgress();
      fmt::print("{}: {}\n", run.run_name.function_name, run.error_message);
    }
    if (run.aggregate_name != "median") continue;
    const std::vector<std::string> name = SplitName(run.run_name.function_name);
    if (name[0] != roof_table_) PrintRoofTable();
    if (name[0] == "attention" || name[0] == "sparse" || name[0] == "gemm") {
      AddRoofRow(run, name);
    } else {
      AddExport(run, name);
    }
  }
}

void TableReporter::Finalize() {
  PrintRoofTable();
  PrintExportRow();
  ClearProgress();
}

void TableReporter::AddRoofRow(const Run& median, const std::vector<std::string>& name) {
  roof_table_ = name[0];
  const auto& counters = median.counters;
  roof_rows_.push_back(
      {.shape = name[1],
       .size = name[2].substr(1),
       .label = median.report_label,
       .seconds = median.GetAdjustedRealTime() / GetTimeUnitMultiplier(median.time_unit),
       .bytes = counters.at(kBytes),
       .flops = counters.at(kFlops),
       .fma_after = counters.at(kFmaAfter)});
  roofs_.push_back(
      {.read_bytes_per_s = counters.at(kReadRoof), .flops_per_s = counters.at(kFmaRoof)});
}

void TableReporter::PrintRoofTable() {
  if (roof_rows_.empty()) return;
  ClearProgress();
  cpu::Roofs best = roofs_[0], worst = roofs_[0];
  for (const cpu::Roofs& roofs : roofs_) {
    best = cpu::Best(best, roofs);
    worst = Worst(worst, roofs);
  }
  const bool is_gemm = roof_table_ == "gemm";
  if (roof_table_ == "sparse") {
    fmt::print("\nCPU sparse attention on all threads, and dense attention beside it\n");
  } else {
    fmt::print("\nCPU {} on all threads; each run takes the {} of another layer\n",
               is_gemm ? "matrix products" : "latent attention", is_gemm ? "weights" : "KV");
  }
  fmt::print(
      "roofs, measured before each row: read over 1 GiB {:.1f} GB/s at best ({:.1f} at worst), "
      "multiply-add {:.1f} GFLOP/s ({:.1f})\n\n",
      best.read_bytes_per_s * 1e-9, worst.read_bytes_per_s * 1e-9, best.flops_per_s * 1e-9,
      worst.flops_per_s * 1e-9);
  fmt::print("{:<26} {:<22} {:>4} {:>10} {:>8} {:>9}  {:<13} {:>9}\n", "shape",
             is_gemm ? "inputs x outputs" : "heads, KV", is_gemm ? "rows" : "page", "median ms",
             "GB/s", "GFLOP/s", "nearer roof", "% of roof");
  bool any_busy = false;
  for (const RoofRow& row : roof_rows_) {
    const bool was_busy = row.fma_after < 0.9 * best.flops_per_s;
    const double memory_s = row.bytes / best.read_bytes_per_s;
    const double fma_s = row.flops / best.flops_per_s;
    fmt::print("{:<26} {:<22} {:>4} {:>10} {:>8.2f} {:>9.1f}  {:<13} {:>8.0f}%{}\n", row.shape,
               row.label, row.size, Digits(row.seconds * 1e3), row.bytes / row.seconds * 1e-9,
               row.flops / row.seconds * 1e-9, memory_s > fma_s ? "memory read" : "multiply-add",
               std::max(memory_s, fma_s) / row.seconds * 100, was_busy ? " *" : "");
    any_busy |= was_busy;
  }
  if (any_busy) {
    fmt::print(
        "* disturbed: right after its runs, multiply-adds reached less than 90% of their roof\n");
  }
  std::fflush(stdout);
  roof_rows_.clear();
  roofs_.clear();
}

void TableReporter::AddExport(const Run& median, const std::vector<std::string>& name) {
  const std::string num_seqs = name[1].substr(1), context = name[2].substr(1);
  if (name[0] != form_ || num_seqs != num_seqs_ || context != context_) {
    PrintExportRow();
    if (name[0] != form_) PrintExportHeader(fmt::format("{}: {}", name[0], median.report_label));
    form_ = name[0], num_seqs_ = num_seqs, context_ = context;
  }
  ExportCell& cell = cells_[name[3].substr(1)];
  const double us = median.GetAdjustedRealTime() / GetTimeUnitMultiplier(median.time_unit) * 1e6;
  (name[4] == "serial" ? cell.serial_us : cell.parallel_us) = us;
  cell.entries = median.counters.at(kEntries);
}

void TableReporter::PrintExportHeader(const std::string& title) const {
  ClearProgress();
  fmt::print("\n{}\n{:15}", title, "");
  for (int32_t page_size : kPageSizes) {
    fmt::print("  {:-^31}", fmt::format(" page size {} ", page_size));
  }
  fmt::print("\n{:>5}  {:>8}", "seqs", "context");
  for (size_t i = 0; i < std::size(kPageSizes); ++i) {
    fmt::print("  {:>7} {:>7} {:>8} {:>6}", "entries", "serial", "parallel", "ns/ent");
  }
  fmt::print("\n");
}

void TableReporter::PrintExportRow() {
  if (cells_.empty()) return;
  ClearProgress();
  fmt::print("{:>5}  {:>8}", num_seqs_, context_);
  for (int32_t page_size : kPageSizes) {
    const ExportCell cell = cells_[std::to_string(page_size)];
    const auto number = [](double value) { return value > 0 ? Digits(value) : "-"; };
    fmt::print("  {:>7} {:>7} {:>8} {:>6}", cell.entries > 0 ? Entries(cell.entries) : "-",
               number(cell.serial_us), number(cell.parallel_us),
               number(cell.entries > 0 ? cell.serial_us * 1e3 / cell.entries : 0));
  }
  fmt::print("\n");
  std::fflush(stdout);
  cells_.clear();
}

}  // namespace quire::bench
