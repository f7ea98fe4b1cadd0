// Attention of prompts in multi-head form on the GPU: the whole op, and its last kernel alone.
#ifndef QUIRE_BENCH_CUDA_PREFILL_BENCH_H_
#define QUIRE_BENCH_CUDA_PREFILL_BENCH_H_

#include "bench/tables.h"

namespace quire::bench {

//   prefill/<heads>h_<nope + rope>_<value>_q<q_len>_b<num_seqs>_s<kv_len>/<op or attend>
//
// Queries and outputs are bf16. TFLOP/s are those of attention over the keys that queries see, of `op`
// too, which besides brings the cache's rows up to keys and values.
void RegisterCudaPrefill(Effort effort);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_PREFILL_BENCH_H_
