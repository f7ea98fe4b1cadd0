// The small ops of a layer on the device: f32 residual stream, bf16 activations. Every row by itself,
// so a row's bits depend on the row alone: not on the batch, the grid or how rows are aligned.
//
//   Embed       hidden = scale * table[token]
//   AddRmsNorm  hidden += scale * update; normed = rms_norm(hidden)
//   RmsNorm     y = x / sqrt(mean(x^2) + eps) * weight
//   GatherRope  rows of cos and sin out of the table of all positions
//   Rope        pairs (a, b) of rope_dim values -> (a cos - b sin, b cos + a sin)
//   SiluMul     y = gate / (1 + exp(-gate)) * up, of rows [gate | up]
//   AddScaled   y += scale * x
//   Combine     y = sum_j weight_j * row_j over a token's experts, in the order of the choice, + shared
//   CombineAddRmsNorm  Combine, then AddRmsNorm of what it gives, in one launch
//
// Arithmetic is in f32 and in the order of kernels/row_ops.h, but for the sums of the norms, which
// have a tree of their own (SumThreads); results that are bf16 are rounded once, to nearest even.
//
// All spans and views are of device memory. Ops launch and return: errors of the arguments are thrown
// before, what only the device can see is reported in the status word.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_H_
#define QUIRE_KERNELS_CUDA_ROW_OPS_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/row_ops.h"

namespace quire::cuda {

// How many of the rows that a launch is sized for there are: null, then all of them; or a number in
// device memory, which may change between two launches of a graph. Rows past it are not touched.
struct LiveRows {
  const int32_t* count = nullptr;
};

// A row's sum of squares: groups of eight values, group g to thread g mod SumThreads(width), each
// thread's values ascending; then the threads of a warp and the warps as trees of 16 + 16, 8 + 8, ...
// A function of the width alone.
int SumThreads(int64_t width);

// Rows of a norm live in the registers of one CTA: 1024 threads of two groups of eight.
inline constexpr int64_t kMaxNormWidth = 16384;

struct EmbedArgs {
  ConstTensorView table = {};  // [vocab, width] bf16 or f32
  std::span<const int32_t> tokens =
      {};  // [num_tokens]; one outside the table is reported: row of 0
  float scale = 1.0f;
  TensorView hidden = {};  // [num_tokens, width] f32
  LiveRows live = {};
  StatusWord status = {};
};

struct AddRmsNormArgs {
  TensorView hidden = {};              // [num_tokens, width] f32, updated
  ConstTensorView update = {};         // [num_tokens, width] bf16 or f32
  float scale = 1.0f;                  // of the update
  std::span<const float> weight = {};  // [width], 1..kMaxNormWidth
  float eps = 1e-6f;                   // finite, >= 0
  TensorView normed = {};              // [num_tokens, width] bf16 or f32; not in hidden or update
  LiveRows live = {};
};

struct RmsNormArgs {
  ConstTensorView x = {};              // [num_tokens, width] bf16 or f32
  std::span<const float> weight = {};  // [width], 1..kMaxNormWidth
  float eps = 1e-6f;                   // finite, >= 0
  TensorView y = {};                   // [num_tokens, width] bf16 or f32; may be x
  LiveRows live = {};
};

struct GatherRopeArgs {
  ConstTensorView table_cos = {};  // [context, rope_dim / 2] f32, as RopeTable::Fill makes it
  ConstTensorView table_sin = {};  // as table_cos
  // [num_tokens]; one outside the table is reported (kCapacity): it gets the table's last row
  std::span<const TokenCount> positions = {};
  TensorView cos = {};  // [num_tokens, rope_dim / 2] f32
  TensorView sin = {};  // as cos
  LiveRows live = {};
  StatusWord status = {};
};

struct RopeArgs {
  // [num_tokens, num_heads, rope_dim] bf16 or f32; often the last values of wider heads:
  // q.Columns(nope_dim, rope_dim).
  ConstTensorView x = {};
  ConstTensorView cos = {};  // [num_tokens, rope_dim / 2] f32
  ConstTensorView sin = {};  // as cos
  RopePairs pairs = RopePairs::kInterleaved;
  // As x, of its own dtype: q_latent.Columns(latent_dim, rope_dim) for instance; may be x.
  TensorView y = {};
  LiveRows live = {};
};

struct SiluMulArgs {
  ConstTensorView gate_up = {};  // [num_tokens, 2 * width] bf16 or f32
  TensorView y = {};             // [num_tokens, width] bf16 or f32; not in gate_up
  LiveRows live = {};
};

struct AddScaledArgs {
  ConstTensorView x = {};  // [num_tokens, width] bf16 or f32
  float scale = 1.0f;
  TensorView y = {};  // [num_tokens, width] f32; may be x
  LiveRows live = {};
};

struct CombineArgs {
  ConstTensorView rows = {};  // [num_tokens * top_k, width] bf16 or f32
  std::span<const int32_t> row_of =
      {};  // [num_tokens, top_k]; one outside is reported, adds nothing
  std::span<const float> weights = {};  // [num_tokens, top_k]
  ConstTensorView shared = {};          // [num_tokens, width] as rows, added last; or empty
  TensorView y = {};                    // [num_tokens, width] bf16 or f32; not in rows or shared
  LiveRows live = {};
  StatusWord status = {};
};

// Throw Error(kInvalidArgument) naming the argument, the expected and the actual value. They read no
// device memory.
void Validate(const EmbedArgs& args);
void Validate(const AddRmsNormArgs& args);
void Validate(const RmsNormArgs& args);
void Validate(const GatherRopeArgs& args);
void Validate(const RopeArgs& args);
void Validate(const SiluMulArgs& args);
void Validate(const AddScaledArgs& args);
void Validate(const CombineArgs& args);
void Validate(const CombineArgs& combine, const AddRmsNormArgs& norm);

void Embed(const EmbedArgs& args, const Stream& stream);
void AddRmsNorm(const AddRmsNormArgs& args, const Stream& stream);
void RmsNorm(const RmsNormArgs& args, const Stream& stream);
void GatherRope(const GatherRopeArgs& args, const Stream& stream);
void Rope(const RopeArgs& args, const Stream& stream);
void SiluMul(const SiluMulArgs& args, const Stream& stream);
void AddScaled(const AddScaledArgs& args, const Stream& stream);
void Combine(const CombineArgs& args, const Stream& stream);

// Combine and then AddRmsNorm: the same bits in norm.hidden and norm.normed. `combine.y` is
// `norm.update`, in bf16; what lies there is neither read nor written. `combine.live` counts for both.
void CombineAddRmsNorm(const CombineArgs& combine, const AddRmsNormArgs& norm,
                       const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_H_
