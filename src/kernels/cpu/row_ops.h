// The small ops of a layer on the CPU; contracts in kernels/row_ops.h. All validate their arguments
// and allocate nothing.
#ifndef QUIRE_KERNELS_CPU_ROW_OPS_H_
#define QUIRE_KERNELS_CPU_ROW_OPS_H_

#include "base/executor.h"
#include "kernels/row_ops.h"

namespace quire::cpu {

void RmsNorm(const RmsNormArgs& args, Executor& executor);
void LayerNorm(const LayerNormArgs& args, Executor& executor);
void Rope(const RopeArgs& args, Executor& executor);
void SiluMul(const SiluMulArgs& args, Executor& executor);
void AddScaled(const AddScaledArgs& args, Executor& executor);
void CopyRows(const CopyRowsArgs& args, Executor& executor);
void Route(const RouteArgs& args, Executor& executor);
void Combine(const CombineArgs& args, Executor& executor);

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_ROW_OPS_H_
