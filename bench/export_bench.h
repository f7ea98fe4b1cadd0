// Planning a step and exporting it for other engines' kernels, on one thread and on all.
#ifndef QUIRE_BENCH_EXPORT_BENCH_H_
#define QUIRE_BENCH_EXPORT_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

// Registers <form>/b<num_seqs>/s<context>/p<page size>/<serial|parallel> with Google
// Benchmark. `parallel` outlives the run.
void RegisterExports(Effort effort, Executor& parallel);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_EXPORT_BENCH_H_
