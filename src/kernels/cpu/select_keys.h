// Choosing the keys of sparse attention on the CPU; contract in kernels/select_keys.h.
#ifndef QUIRE_KERNELS_CPU_SELECT_KEYS_H_
#define QUIRE_KERNELS_CPU_SELECT_KEYS_H_

#include "attn/capacity.h"
#include "base/executor.h"
#include "base/units.h"
#include "kernels/select_keys.h"

namespace quire::cpu {

// Enough for any plan whose work is cut like this, whatever its capacity.
ByteOffset SelectKeysWorkspace(const WorkShape& work, const IndexShape& shape);

void SelectKeys(const SelectKeysArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_SELECT_KEYS_H_
