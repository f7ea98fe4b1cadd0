// Latent attention on the GPU, against roofs of the same run: reading device memory, and chains
// of mma.sync products from registers, which is what the kernel's products can reach at best.
#ifndef QUIRE_BENCH_CUDA_ATTENTION_BENCH_H_
#define QUIRE_BENCH_CUDA_ATTENTION_BENCH_H_

#include <cstdint>

#include "bench/tables.h"
#include "device/cuda/cuda.h"

namespace quire::bench {

//   attention/<heads>h_q<q_len>_b<num_seqs>_s<kv_len>[_fp8][_exact][_mixed]/p<page size>
//
// Queries and outputs are bf16. One graph holds a launch per layer, of as many layers as it takes
// to leave the L2 cache behind; its time by events, over the number of layers, is that of the op,
// merge included. Takes up to 20 GB of device memory.
void RegisterCudaAttention(Effort effort);

// Gives `stream` m16n8k16 products of bf16, and returns how many operations they are.
double LaunchMmaRoof(int num_sms, float* sink, const cuda::Stream& stream);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_ATTENTION_BENCH_H_
