// Latent attention over chosen keys on the CPU; contract in kernels/sparse_attention.h.
#ifndef QUIRE_KERNELS_CPU_SPARSE_ATTENTION_H_
#define QUIRE_KERNELS_CPU_SPARSE_ATTENTION_H_

#include "attn/capacity.h"
#include "base/executor.h"
#include "base/units.h"
#include "kernels/sparse_attention.h"

namespace quire::cpu {

// Enough for any plan whose work is cut like this, whatever its capacity.
ByteOffset SparseAttentionWorkspace(const WorkShape& work, const MlaShape& shape);

void SparseAttention(const SparseAttentionArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_SPARSE_ATTENTION_H_
