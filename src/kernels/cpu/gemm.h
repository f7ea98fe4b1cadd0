// Matrix products on the CPU; contract in kernels/gemm.h.
#ifndef QUIRE_KERNELS_CPU_GEMM_H_
#define QUIRE_KERNELS_CPU_GEMM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/executor.h"
#include "kernels/gemm.h"

namespace quire::cpu {

// Packs `source` into `memory`, which has PackedBytes(source.shape, format) bytes. `format` is the
// source's own, or kF32, to which every format converts exactly. NaN codes keep kFp8Block from being
// packed as such; `memory` is then partly written.
PackedMatrix Pack(const MatrixSource& source, WeightFormat format, std::span<std::byte> memory,
                  Executor& executor);

// Several products, all independent, as one parallel loop: the heads of an absorbed projection, the
// experts of a layer. Products without rows are allowed. Allocates nothing.
void Matmul(std::span<const MatmulArgs> products, Executor& executor);
inline void Matmul(const MatmulArgs& product, Executor& executor) {
  Matmul(std::span<const MatmulArgs>(&product, 1), executor);
}

// row = w[n, :] as f32: what an embedding reads.
void UnpackRow(const PackedMatrix& w, int64_t n, std::span<float> row);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_GEMM_H_
