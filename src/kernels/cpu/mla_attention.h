// Latent attention on the CPU; contract in kernels/mla_attention.h.
#ifndef QUIRE_KERNELS_CPU_MLA_ATTENTION_H_
#define QUIRE_KERNELS_CPU_MLA_ATTENTION_H_

#include "base/executor.h"
#include "kernels/mla_attention.h"

namespace quire::cpu {

// How this kernel wants its work cut, for num_workers parallel workers.
WorkShape MlaWorkShape(const MlaShape& shape, int32_t num_workers);

// Enough for any plan of this capacity.
ByteOffset MlaAttentionWorkspace(const StepCapacity& capacity, const WorkShape& work,
                                 const MlaShape& shape);

void MlaAttention(const MlaAttentionArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_MLA_ATTENTION_H_
