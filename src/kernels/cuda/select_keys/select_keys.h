// Choosing the keys of sparse attention on the device; contract in kernels/select_keys.h.
//
// Spans and views hold device pointers, and so does the plan (attn/cuda), whose work is
// SelectWorkShape's. The kernels:
//   kTensorCore  e4m3 keys of 128 values, up to 64 heads: queries are two e4m3 codes a value, a scale
//                for each head, and products keep 13 bits (docs/numerics.md)
//   kPlain       anything else, in f32 throughout: right for any shape, not fast
// The choice of a query depends on its own sequence, position and kernel, and on nothing else. A page
// outside the pool is reported (DeviceFault::kPage, index: the sequence) and read as the scratch page.
#ifndef QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_H_
#define QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_H_

#include <cstdint>

#include "attn/capacity.h"
#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/select_keys.h"

namespace quire::cuda {

enum class SelectKernel { kPlain, kTensorCore };

// A worker for each of num_sms multiprocessors; queries that see no more than top_k keys cost nothing.
WorkShape SelectWorkShape(const IndexShape& shape, int32_t num_sms);

// Enough for any plan of this capacity, whatever its context.
ByteOffset SelectKeysWorkspace(const StepCapacity& capacity, const WorkShape& work,
                               const IndexShape& shape);

// The kernel that SelectKeys runs.
SelectKernel ChooseSelectKernel(const SelectKeysArgs& args);

// Launches and returns.
void SelectKeys(const SelectKeysArgs& args, const Stream& stream, StatusWord status = {});
// The same with a kernel of the caller's choice, for tests and benchmarks. Throws
// Error(kInvalidArgument) if kTensorCore cannot take these arguments.
void SelectKeys(const SelectKeysArgs& args, SelectKernel kernel, const Stream& stream,
                StatusWord status = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_SELECT_KEYS_SELECT_KEYS_H_
