// Multi-head prefill on the CPU; contract in kernels/mha_prefill.h.
#ifndef QUIRE_KERNELS_CPU_MHA_PREFILL_H_
#define QUIRE_KERNELS_CPU_MHA_PREFILL_H_

#include "base/executor.h"
#include "kernels/mha_prefill.h"

namespace quire::cpu {

// For plans of up to max_q_len queries in one sequence, run by num_threads threads. Independent of
// the context: one tile of keys is expanded at a time.
ByteOffset MhaPrefillWorkspace(const MhaShape& shape, TokenCount max_q_len, int32_t num_threads);

void MhaPrefill(const MhaPrefillArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_MHA_PREFILL_H_
