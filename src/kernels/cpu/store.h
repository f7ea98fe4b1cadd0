// The store kernels on the CPU; contracts in kernels/store.h.
#ifndef QUIRE_KERNELS_CPU_STORE_H_
#define QUIRE_KERNELS_CPU_STORE_H_

#include "base/executor.h"
#include "kernels/store.h"

namespace quire::cpu {

void StoreWrite(const StoreWriteArgs& args, Executor& executor);
void StoreGather(const StoreGatherArgs& args, Executor& executor);
void StoreMove(const StoreMoveArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_STORE_H_
