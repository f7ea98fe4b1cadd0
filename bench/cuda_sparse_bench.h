// Sparse attention on the GPU: choosing keys, and attending to them.
#ifndef QUIRE_BENCH_CUDA_SPARSE_BENCH_H_
#define QUIRE_BENCH_CUDA_SPARSE_BENCH_H_

#include "bench/tables.h"

namespace quire::bench {

//   select/<heads>h_top<top_k>_q<q_len>_b<num_seqs>_s<kv_len>[_preshuffled]/p<page size>
//   chosen/<heads>h_top<top_k>_q<q_len>_b<num_seqs>_s<kv_len>[_fp8]/p<page size>
//
// Scores over e4m3 keys of 128 values and the choice, all launches counted; latent attention over a
// choice, and beside it dense attention over as many keys. A graph of layers, as attention/.
void RegisterCudaSparse(Effort effort);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_SPARSE_BENCH_H_
