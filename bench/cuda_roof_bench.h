// What the device and the way to it allow: the roofs of the other measurements on it.
#ifndef QUIRE_BENCH_CUDA_ROOF_BENCH_H_
#define QUIRE_BENCH_CUDA_ROOF_BENCH_H_

#include "base/executor.h"
#include "bench/tables.h"

namespace quire::bench {

//   roof/copy          device memory to device memory: bytes read and written
//   roof/pinned        pinned host memory to the device: the bus alone
//   roof/upload        any host memory to the device, through cuda::Uploader
//   roof/empty_graph   launching a graph of one copy of 4 bytes, and waiting for it
// `executor` outlives the measurements.
void RegisterCudaRoofs(Effort effort, Executor& executor);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_ROOF_BENCH_H_
