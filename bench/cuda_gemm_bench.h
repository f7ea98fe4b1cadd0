// Matrix products of DeepSeek-V2-Lite and DeepSeek-V3 on the GPU, against roofs of the same run:
// reading device memory, and cuBLASLt's product of 8192 x 8192 x 8192.
#ifndef QUIRE_BENCH_CUDA_GEMM_BENCH_H_
#define QUIRE_BENCH_CUDA_GEMM_BENCH_H_

#include "bench/tables.h"

namespace quire::bench {

//   gemm/<model>/<product>/<lt|tiles|boxed|fp8|fp8_keep_x>[_ahead]/r<rows>   rows of experts are tokens
//   router/<model>/r<rows>   a norm, the router's product with it, the choice of experts and the sort
//
// lt is cuBLASLt, boxed is BoxedGemm, the others are the tile kernel: bf16, e4m3 both, and e4m3 weights with bf16 rows.
// Layers of _ahead overlap.
// Weights are visited layer after layer, so that none is still in the L2 cache when its turn comes
// again. One graph holds a launch per layer; its time by events, over the number of layers, is that
// of a product. Takes 23 GB of device memory.
void RegisterCudaGemm(Effort effort);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_GEMM_BENCH_H_
