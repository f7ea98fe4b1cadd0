#include "kernels/cuda/gemm/gemm_boxed.h"

#include <bit>

#include "base/error.h"

namespace quire::cuda {
namespace {

// A tile of gate and up has 64 outputs too.
int64_t NumTiles(const WeightView& w) {
  return CeilDiv(w.shape.outputs, int64_t{ExtentOf(TileSize::kMedium).outputs}) * w.count;
}

}  // namespace

bool BoxedTakes(const GemmArgs& args) {
  if (args.w.format != WeightFormat::kBf16 || NumTiles(args.w) > kMaxBoxedTiles) return false;
  if (args.y.dim(0) < 1 || args.y.dim(0) > kMaxBoxedRows) return false;
  if (args.w.count > 1 && args.x_step == 0) return false;
  if (!args.up.empty()) return GemmTakesGate(args);
  const TileParams p = MakeTileParams(args);
  return ChooseTile(p, {}, args.w, p.rows).loads == TileLoads::kAligned;
}

void BoxedGemm(const GemmArgs& args, const Stream& stream, std::optional<int32_t> ranges) {
  Validate(args);
  Require(BoxedTakes(args), "boxed gemm: {} rows, {} matrices of {} x {}, or their addresses",
          args.y.dim(0), args.w.count, args.w.shape.outputs, args.w.shape.inputs);
  TileParams p = MakeTileParams(args);
  p.num_splits = ranges.value_or(BoxedRanges(NumTiles(args.w), p.inputs));
  Require(p.num_splits >= 1 && p.num_splits <= kMaxSplits &&
              std::has_single_bit(static_cast<uint32_t>(p.num_splits)),
          "boxed gemm: expected 1, 2, 4 or 8 ranges, got {}", p.num_splits);
  p.split_inputs = static_cast<int32_t>(GemmSplitInputs(p.inputs, p.num_splits, TileMath::kBf16));
  LaunchBoxed(p, stream);
}

}  // namespace quire::cuda
