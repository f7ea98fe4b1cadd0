// The small ops of a layer, routing and sampling on the GPU, against a copy within device memory.
#ifndef QUIRE_BENCH_CUDA_ROW_BENCH_H_
#define QUIRE_BENCH_CUDA_ROW_BENCH_H_

#include "bench/tables.h"

namespace quire::bench {

//   rows/<op>/r<rows>           of DeepSeek-V3: rows 7168 wide, 256 experts of which 8 are chosen
//   sample/<kind>/r<rows>       of 129280 logits
//
// One graph holds a launch per copy of the inputs, of which there are as many as it takes to leave the
// L2 cache behind (up to 64); its time by events over their number is that of an op, so that what is
// seen is the kernel and not the way to launch it. Takes 5 GB of device memory.
void RegisterCudaRows(Effort effort);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_ROW_BENCH_H_
