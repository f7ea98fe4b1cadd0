// The small ops of a layer on the device: f32 residual stream, bf16 activations. Every row by itself,
// so a row's bits depend on the row alone: not on the batch, the grid or how rows are aligned.
//
//   Embed       hidden = scale * table[token]
//   AddRmsNorm  hidden += scale * update; normed = rms_norm(hidden)
//   RmsNorm     y = x / sqrt(mean(x^2) + eps) * weight * scale
//   GatherRope  rows of cos and sin out of the table of all positions
//   Rope        pairs (a, b) of rope_dim values -> (a cos - b sin, b cos + a sin)
//   SiluMul     y = gate / (1 + exp(-gate)) * up, of rows [gate | up]
//   AddScaled   y += scale * x
//   CopyRows    y = x, in y's type
//   Combine     y = sum_j weight_j * row_j over a token's experts, in the order of the choice, + shared
//   CombineAddRmsNorm  Combine, then AddRmsNorm of what it gives, in one launch
//
// Arithmetic is in f32 and in the order of kernels/row_ops.h, but for the sums of the norms, which
// have a tree of their own (SumThreads); results that are bf16 are rounded once, to nearest even. Norms and
// SiluMul write codes of such results, too, if they are given memory for them: those of QuantiseRows
// (kernels/cuda/gemm/gemm.h), bit by bit.
//
// All spans and views are of device memory. Ops launch and return: errors of the arguments are thrown
// before, what only the device can see is reported in the status word.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_H_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/ops.h"
#include "kernels/quantised_rows.h"
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

// What a launch is told besides its arguments.
struct RowLaunch {
  LiveRows live = {};
  StatusWord status = {};
};

struct EmbedRowsArgs {
  ConstTensorView table = {};            // [vocab, width] bf16 or f32
  std::span<const int32_t> tokens = {};  // [num_tokens]; one that is not there is reported: zeros
  float scale = 1.0f;
  TensorView hidden = {};   // [num_tokens, width] f32
  int64_t first_token = 0;  // of the table
  bool is_part = false;     // other ranks have other tokens: zeros here, and nothing is reported
};

struct AddRmsNormArgs {
  TensorView hidden = {};              // [num_tokens, width] f32, updated
  ConstTensorView update = {};         // [num_tokens, width] bf16 or f32
  float scale = 1.0f;                  // of the update
  std::span<const float> weight = {};  // [width], 1..kMaxNormWidth
  float eps = 1e-6f;                   // finite, >= 0
  TensorView normed = {};              // [num_tokens, width] bf16 or f32; not in hidden or update
  QuantisedRows codes = {};            // of normed, which is bf16; or none
};

// Throw Error(kInvalidArgument) naming the argument, the expected and the actual value. They read no
// device memory.
void Validate(const EmbedRowsArgs& args);
void Validate(const AddRmsNormArgs& args);
void ValidateOnDevice(const RmsNormArgs& args);
void ValidateOnDevice(const SiluMulArgs& args);
void ValidateOnDevice(const StepAngles& angles);
void Validate(const CombineArgs& combine, const AddRmsNormArgs& norm);

void Embed(const EmbedRowsArgs& args, const Stream& stream, RowLaunch launch = {});
// Rows before *first and from *end on, both in device memory, become all bits 0.
void ClearOtherRows(TensorView rows, const int32_t* first, const int32_t* end,
                    const Stream& stream);
void AddRmsNorm(const AddRmsNormArgs& args, const Stream& stream, RowLaunch launch = {});
void RmsNorm(const RmsNormArgs& args, const Stream& stream, RowLaunch launch = {});
// A position outside the table is reported (kCapacity) and gets the table's last row.
void GatherRope(const StepAngles& angles, const Stream& stream, RowLaunch launch = {});
void Rope(const RopeArgs& args, const Stream& stream, RowLaunch launch = {});
void SiluMul(const SiluMulArgs& args, const Stream& stream, RowLaunch launch = {});
void AddScaled(const AddScaledArgs& args, const Stream& stream, RowLaunch launch = {});
void CopyRows(const CopyRowsArgs& args, const Stream& stream);
// A row_of outside is reported (kExpert) and adds nothing.
void Combine(const CombineArgs& args, const Stream& stream, RowLaunch launch = {});

// Combine and then AddRmsNorm: the same bits in norm.hidden, norm.normed and norm.codes. `combine.y` is
// `norm.update`, in bf16; what lies there is neither read nor written.
void CombineAddRmsNorm(const CombineArgs& combine, const AddRmsNormArgs& norm, const Stream& stream,
                       RowLaunch launch = {});

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_H_
