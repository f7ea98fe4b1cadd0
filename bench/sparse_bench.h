// Sparse attention on the CPU, against the roofs of this machine: choosing keys, and attending to them.
#ifndef QUIRE_BENCH_SPARSE_BENCH_H_
#define QUIRE_BENCH_SPARSE_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

// Registers sparse/<shape>/p<page size> with Google Benchmark. `executor` outlives the run.
void RegisterSparse(Effort effort, Executor& executor);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_SPARSE_BENCH_H_
