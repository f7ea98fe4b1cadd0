// Latent attention on the device; contract in kernels/mla_attention.h.
//
// Spans and views hold device pointers, and so does the plan (attn/cuda). The kernels:
//   kTensorCore  bf16 queries, 512 + 64 values, bf16 or fp8 rows: tensor cores, f32 sums, weights
//                rounded to bf16 (f16 for fp8 rows) before they meet the values (docs/numerics.md)
//   kFewRows     the same for a step of few tokens, soon done
//   kPlain       anything else, in f32 throughout: right for any shape, not fast
// The order of summation is the plan's, so with an exact plan, which kFewRows does not take, a row's bits depend on its
// own sequence and position, the split and the kernel, and on nothing else. A page outside the pool is reported
// (DeviceFault::kPage, index: the sequence) and read as the scratch page; a partial past the
// workspace is reported (kCapacity, index: its number) and dropped.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_H_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_H_

#include "device/cuda/cuda.h"
#include "kernels/mla_attention.h"
#include "kernels/sparse_attention.h"

namespace quire::cuda {

// kFewRows: tensor cores too, for tokens of 16 heads at most that are not many, outside of exact mode.
enum class MlaKernel { kPlain, kTensorCore, kFewRows };

// What a step is like. kDecode: every sequence has one query token at most, so no two of them share keys.
enum class MlaStep { kDecode, kAny };

// What a device runs at once: multiprocessors, and clusters of CTAs each of which is a worker of few rows.
struct MlaRoom {
  int32_t num_sms = 1;
  int32_t num_clusters = 0;
};
// Of the device at hand.
MlaRoom QueryMlaRoom();

// How the kernels want their work cut: a worker for every CTA, or CTAs of a tile, or cluster of CTAs, that runs at once.
// A step of another kind, of more tokens than `most_tokens`, of trees of more than 64 nodes, or over rows of another
// format, is computed right as well, only more slowly.
WorkShape MlaWorkShape(const MlaShape& shape, const MlaRoom& room, MlaStep step, bool exact,
                       TokenCount most_tokens = TokenCount(INT32_MAX),
                       KvFormat format = KvFormat::kLatentBf16);

// Enough for any plan of this capacity.
ByteOffset MlaAttentionWorkspace(const StepCapacity& capacity, const WorkShape& work,
                                 const MlaShape& shape);

// The kernel that MlaAttention runs: the tensor cores where shape, types and alignment allow
// (q and the store on 16 bytes, out on two elements), and of those for few rows where tokens are few.
MlaKernel ChooseMlaKernel(const MlaAttentionArgs& args);

// Launches and returns. In a stream that overlaps (device/cuda/launch.h), the kernel before has written neither the plan
// nor keys of earlier steps: those that come before the step's last num_tokens.
void MlaAttention(const MlaAttentionArgs& args, const Stream& stream, StatusWord status = {});
// The same with a kernel of the caller's choice, for tests and benchmarks. Throws
// Error(kInvalidArgument) if it cannot take these arguments.
void MlaAttention(const MlaAttentionArgs& args, MlaKernel kernel, const Stream& stream,
                  StatusWord status = {});

// How the work over chosen keys is cut: a tile for every query, of top_k keys at most.
WorkShape SparseWorkShape(const MlaShape& shape, int32_t top_k, int32_t num_sms, bool exact);

// Latent attention over chosen keys, by the same kernels; contract in kernels/sparse_attention.h. The
// plan's work is SparseWorkShape's, its workspace MlaAttentionWorkspace. A query has as many chosen keys
// as it can: all that it sees, or top_k. One that its sequence does not have is reported
// (DeviceFault::kChoice, index: the sequence), and the first key stands in.
void SparseAttention(const SparseAttentionArgs& args, const Stream& stream, StatusWord status = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_H_
