// Matrix products on the CPU, against the roofs of this machine.
#ifndef QUIRE_BENCH_GEMM_BENCH_H_
#define QUIRE_BENCH_GEMM_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

// Registers gemm/<shape>/r<rows> with Google Benchmark. `executor` outlives the run.
void RegisterGemm(Effort effort, Executor& executor);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_GEMM_BENCH_H_
