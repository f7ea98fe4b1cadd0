// What the host does for a step besides computing it: deciding who is in it, and planning it.
#ifndef QUIRE_BENCH_ENGINE_BENCH_H_
#define QUIRE_BENCH_ENGINE_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

// Registers <schedule|host_step|host_pages|gap>/b<num_seqs>/s<context>/p<page size>/<serial|parallel>
// with Google Benchmark; only plans use threads. `parallel` outlives the run.
void RegisterEngine(Effort effort, Executor& parallel);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_ENGINE_BENCH_H_
