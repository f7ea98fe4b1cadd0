// quire_cuda_bench: the CUDA device, and what runs on it, against the device's roofs.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "bench/cuda_attention_bench.h"
#include "bench/cuda_gemm_bench.h"
#include "bench/cuda_prefill_bench.h"
#include "bench/cuda_roof_bench.h"
#include "bench/cuda_row_bench.h"
#include "bench/cuda_sparse_bench.h"
#include "bench/tables.h"
#include "device/cuda/cuda.h"
#include "device/thread_pool.h"

namespace {

void PrintHelp() {
  fmt::print(
      "quire_cuda_bench [--quick] [--benchmark_filter=REGEX] [--benchmark_out=FILE]\n"
      "\n"
      "Measures the first CUDA device (CUDA_VISIBLE_DEVICES chooses) and what runs on it.\n"
      "\n"
      "  --quick                   smaller and fewer measurements\n"
      "  --benchmark_list_tests    their names\n"
      "\n"
      "Other flags of Google Benchmark that start with --benchmark_ work too.\n");
}

void PrintDevice(const quire::cuda::DeviceProperties& device) {
  fmt::print("{}: {} SMs, {:.1f} GB, {:.0f} MB of L2 cache\n", device.name, device.num_sms,
             static_cast<double>(device.memory.raw()) * 1e-9,
             static_cast<double>(device.l2_cache.raw()) * 1e-6);
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
    fmt::print(stderr, "quire_cuda_bench --help lists the flags\n");
    return 2;
  }
  try {
    PrintDevice(cuda::QueryDevice());
    ThreadPool threads(ThreadPool::DefaultThreads());
    RegisterCudaRoofs(effort, threads);
    RegisterCudaGemm(effort);
    RegisterCudaRows(effort);
    RegisterCudaAttention(effort);
    RegisterCudaPrefill(effort);
    RegisterCudaSparse(effort);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
  } catch (const std::exception& error) {
    fmt::print(stderr, "quire_cuda_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
