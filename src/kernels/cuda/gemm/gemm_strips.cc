#include "kernels/cuda/gemm/gemm_strips.h"

#include <algorithm>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/gemm/row_rotation.h"

namespace quire::cuda {
namespace {

constexpr int64_t kInputGroup = 8;  // 16 bytes
constexpr int32_t kStepRowBytes = kStripStepInputs * 2;

void Multiply(const GemmArgs& args, const RopeArgs* rope, const Stream& stream) {
  Validate(args);
  Require(StripsTake(args), "strips: {} rows, {} matrices of {} x {}, or their addresses",
          args.y.dim(0), args.w.count, args.w.shape.outputs, args.w.shape.inputs);
  LaunchStrips(MakeTileParams(args), rope, stream);
}

}  // namespace

StripLayout StripLayoutOf(const TileParams& p) {
  StripLayout layout{.outputs = p.gated ? kStripRows / 2 : kStripRows};
  layout.strips = CeilDiv(p.outputs, layout.outputs);
  const int32_t most = std::max(1, kMostStripWarps / p.num_splits);
  const int64_t strips = int64_t{layout.strips} * p.num_batches;
  layout.strips_of_cta =
      static_cast<int32_t>(std::clamp<int64_t>(strips / kMultiprocessors, 1, most));
  layout.warps = p.num_splits * layout.strips_of_cta;
  const int32_t steps = CeilDiv(std::min(p.split_inputs, p.inputs), kStripStepInputs);
  layout.ring_bytes = std::min(steps, kStripRingSteps) * kStripRows * kStepRowBytes;
  layout.x_stride = steps * kStepRowBytes + 16;
  layout.warp_bytes = layout.ring_bytes + RoundUp(p.rows * layout.x_stride, kStepRowBytes);
  return layout;
}

bool StripsTake(const GemmArgs& args) {
  const int64_t rows = args.y.dim(0);
  if (args.w.format != WeightFormat::kBf16 || rows < 1 || rows > kMaxStripRows) return false;
  if (args.w.shape.inputs % kInputGroup != 0) return false;
  if (!args.up.empty() && !GemmTakesGate(args)) return false;
  const TileParams p = MakeTileParams(args);
  if (rows * std::min(p.split_inputs, p.inputs) > kMaxStripX) return false;
  const StripLayout layout = StripLayoutOf(p);
  return int64_t{layout.strips} * p.num_batches * p.num_splits <= kMaxStrips &&
         layout.SharedBytes() <= kMaxStripBytes &&
         ChooseTile(p, {}, args.w, rows).loads == TileLoads::kAligned;
}

void StripGemm(const GemmArgs& args, const Stream& stream) { Multiply(args, nullptr, stream); }

void StripGemmAndRope(const GemmArgs& args, const RopeArgs& rope, const Stream& stream) {
  Validate(rope);
  Require(RotatesOneRow(rope), "strips: expected a row of bf16 heads to rotate");
  Multiply(args, &rope, stream);
}

}  // namespace quire::cuda
