// Latent attention on the CPU, against the roofs of this machine.
#ifndef QUIRE_BENCH_ATTENTION_BENCH_H_
#define QUIRE_BENCH_ATTENTION_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

// Registers attention/<shape>/p<page size> with Google Benchmark. `executor` outlives the run.
void RegisterAttention(Effort effort, Executor& executor);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_ATTENTION_BENCH_H_
