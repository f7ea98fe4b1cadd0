// quire_bench: CPU attention and matrix products against this machine's roofs, then plans, exports
// and schedules.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "bench/attention_bench.h"
#include "bench/engine_bench.h"
#include "bench/export_bench.h"
#include "bench/gemm_bench.h"
#include "bench/sparse_bench.h"
#include "bench/tables.h"
#include "device/thread_pool.h"

namespace {

void PrintHelp() {
  fmt::print(
      "quire_bench [--quick] [--benchmark_filter=REGEX] [--benchmark_out=FILE]\n"
      "\n"
      "Measures CPU attention and matrix products against the roofs of this machine, and the time\n"
      "to plan, export and schedule steps, on one thread and on all this process may use (taskset\n"
      "to change that).\n"
      "\n"
      "  --quick                   fewer shapes and repeats: about 15 s, not 4 minutes\n"
      "  --benchmark_filter=REGEX  only the measurements whose names match, for instance\n"
      "                            attention/v3  or  gemm/.*_b1  or  flat_indices/b64/.*/p16\n"
      "  --benchmark_list_tests    the names\n"
      "  --benchmark_out=FILE      all numbers as JSON as well\n"
      "\n"
      "Other flags of Google Benchmark that start with --benchmark_ work too.\n");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quire;
  using namespace quire::bench;
  benchmark::Initialize(&argc, argv, PrintHelp);
  Effort effort = Effort::kFull;
  char** const end = std::remove_if(
      argv + 1, argv + argc, [](const char* arg) { return std::strcmp(arg, "--quick") == 0; });
  if (end != argv + argc) effort = Effort::kQuick;
  argc = static_cast<int>(end - argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    fmt::print(stderr, "quire_bench --help lists the flags\n");
    return 2;
  }
  try {
    ThreadPool threads(ThreadPool::DefaultThreads());
    RegisterAttention(effort, threads);
    RegisterSparse(effort, threads);
    RegisterGemm(effort, threads);
    RegisterExports(effort, threads);
    RegisterEngine(effort, threads);
    TableReporter reporter;
    benchmark::RunSpecifiedBenchmarks(&reporter);
    benchmark::Shutdown();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
