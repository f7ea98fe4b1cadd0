#include "kernels/cuda/gemm/gemm.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/gemm/gemm_quantise.h"

namespace quire::cuda {
namespace {

// Rows and widths of one launch: 65535 tiles of 64 rows, and byte offsets in a row below 2^31.
constexpr int64_t kMaxRows = int64_t{1} << 21;
constexpr int64_t kMaxWidth = int64_t{1} << 28;

int64_t ScaleBlocks(int64_t extent) { return CeilDiv(extent, int64_t{kScaleBlock}); }

std::byte* FirstByte(const TensorView& view) {
  if (view.dim(0) == 0) return nullptr;
  return view.dtype() == DType::kF32 ? reinterpret_cast<std::byte*>(view.Address<float>())
                                     : reinterpret_cast<std::byte*>(view.Address<Bf16>());
}

bool IsMultiple(const void* pointer, uintptr_t of) {
  return reinterpret_cast<uintptr_t>(pointer) % of == 0;
}

void RequireDType(const char* name, const ConstTensorView& view, DType dtype) {
  Require(view.dtype() == dtype, "{}: expected {}, got {}", name, DTypeName(dtype),
          DTypeName(view.dtype()));
}

void RequireRows(int64_t rows) {
  Require(rows >= 0 && rows <= kMaxRows, "rows: expected 0..{}, got {}", kMaxRows, rows);
}

// Of experts `rows` are an average: with three quarters of a small tile some have more than it holds, which would read
// their weights once more.
TileSize SmallestThatHolds(const TileParams& p, int64_t rows) {
  const int64_t some_rows = p.offsets != nullptr ? rows + rows / 3 : rows;
  if (some_rows <= ExtentOf(TileSize::kDecode).rows) return TileSize::kDecode;
  if (rows <= ExtentOf(TileSize::kMedium).rows) return TileSize::kMedium;
  return TileSize::kPrefill;
}

TileMath MathOf(const QuantisedRows& x_codes, const WeightView& w) {
  if (w.format == WeightFormat::kBf16) return TileMath::kBf16;
  return x_codes.empty() ? TileMath::kFp8KeepX : TileMath::kFp8;
}

// The size, or of a large one what there is of it: wide ones are of codes with one range of inputs, and those of bf16 x with
// e4m3 w, which no warpgroup multiplies, have no pairs.
TileSize NearestOf(TileMath math, const TileParams& p, TileSize size) {
  if (!IsLarge(size)) return size;
  const bool is_wide = ExtentOf(size).outputs > ExtentOf(TileSize::kPrefill).outputs &&
                       math == TileMath::kFp8 && p.num_splits == 1;
  const bool is_pair =
      ExtentOf(size).rows > ExtentOf(TileSize::kPrefill).rows && math != TileMath::kFp8KeepX;
  if (is_pair) return is_wide ? TileSize::kPrefillWidePair : TileSize::kPrefillPair;
  return is_wide ? TileSize::kPrefillWide : TileSize::kPrefill;
}

TileSize SizeThatSuits(const TileParams& p, TileMath math, int64_t rows) {
  const TileSize smallest = SmallestThatHolds(p, rows);
  if (!IsLarge(smallest)) return smallest;
  if (math == TileMath::kFp8) return LargeTileOfCodes(p, rows);
  // Experts' products of bf16 gain by pairs; dense ones do not.
  const bool pays = p.offsets != nullptr && rows > ExtentOf(TileSize::kPrefill).rows;
  return math == TileMath::kBf16 && pays ? TileSize::kPrefillPair : TileSize::kPrefill;
}

}  // namespace

const std::byte* FirstByte(const ConstTensorView& view) {
  if (view.rank() == 0 || view.dim(0) == 0) return nullptr;
  return view.dtype() == DType::kF32 ? reinterpret_cast<const std::byte*>(view.Address<float>())
                                     : reinterpret_cast<const std::byte*>(view.Address<Bf16>());
}

WeightView DenseWeights(const Bf16* data, MatrixShape shape, int64_t count) {
  return {.format = WeightFormat::kBf16,
          .shape = shape,
          .count = count,
          .data = reinterpret_cast<const std::byte*>(data),
          .row_stride = shape.inputs,
          .matrix_stride = shape.outputs * shape.inputs};
}

WeightView Fp8Weights(const Fp8E4m3* data, const float* scales, MatrixShape shape, int64_t count) {
  const int64_t row_blocks = ScaleBlocks(shape.outputs), blocks = ScaleBlocks(shape.inputs);
  return {.format = WeightFormat::kFp8Block,
          .shape = shape,
          .count = count,
          .data = reinterpret_cast<const std::byte*>(data),
          .row_stride = shape.inputs,
          .matrix_stride = shape.outputs * shape.inputs,
          .scales = scales,
          .scale_stride = blocks,
          .scale_matrix_stride = row_blocks * blocks};
}

void RequireWeights(const char* name, const WeightView& w) {
  Require(!w.empty(), "{}: expected a matrix, got none", name);
  Require(w.format == WeightFormat::kBf16 || w.format == WeightFormat::kFp8Block,
          "{}: expected bf16 or fp8_block, got {}", name, WeightFormatName(w.format));
  Require(w.shape.outputs >= 1 && w.shape.outputs <= kMaxWidth && w.shape.inputs >= 1 &&
              w.shape.inputs <= kMaxWidth,
          "{}: expected 1..{} outputs and inputs, got {} x {}", name, kMaxWidth, w.shape.outputs,
          w.shape.inputs);
  Require(w.row_stride >= w.shape.inputs, "{}.row_stride: expected at least {}, got {}", name,
          w.shape.inputs, w.row_stride);
  Require(w.count >= 1 && w.count <= 65535, "{}.count: expected 1..65535, got {}", name, w.count);
  if (w.format != WeightFormat::kFp8Block) return;
  Require(w.scales != nullptr, "{}.scales: expected one per block, got none", name);
  Require(w.scale_stride >= ScaleBlocks(w.shape.inputs),
          "{}.scale_stride: expected at least {}, got {}", name, ScaleBlocks(w.shape.inputs),
          w.scale_stride);
}

void RequireSameWeights(const WeightView& up, const WeightView& gate) {
  RequireWeights("up", up);
  Require(up.shape.outputs == gate.shape.outputs && up.shape.inputs == gate.shape.inputs &&
              up.count == gate.count,
          "up: expected {} matrices of {} x {}, got {} of {} x {}", gate.count, gate.shape.outputs,
          gate.shape.inputs, up.count, up.shape.outputs, up.shape.inputs);
  Require(up.format == gate.format, "up: expected {}, got {}", WeightFormatName(gate.format),
          WeightFormatName(up.format));
  Require(up.row_stride == gate.row_stride && up.matrix_stride == gate.matrix_stride,
          "up: expected strides {} and {}, got {} and {}", gate.row_stride, gate.matrix_stride,
          up.row_stride, up.matrix_stride);
  Require(
      up.scale_stride == gate.scale_stride && up.scale_matrix_stride == gate.scale_matrix_stride,
      "up: expected scale strides {} and {}, got {} and {}", gate.scale_stride,
      gate.scale_matrix_stride, up.scale_stride, up.scale_matrix_stride);
}

int64_t RequireY(const TensorView& y, const WeightView& w) {
  const int64_t rows = y.rank() == 2 ? y.dim(0) : 0;
  RequireRows(rows);
  RequireShape("y", y, {rows, w.shape.outputs});
  return rows;
}

void RequireX(const ConstTensorView& x, const QuantisedRows& x_codes, int64_t rows,
              const WeightView& w) {
  RequireRows(rows);
  if (x_codes.empty()) {
    RequireShape("x", x, {rows, w.shape.inputs});
    RequireDType("x", x, DType::kBf16);
    return;
  }
  Require(w.format == WeightFormat::kFp8Block && w.count == 1,
          "x_codes: expected one fp8_block matrix, got {} of {}", w.count,
          WeightFormatName(w.format));
  RequireQuantised("x_codes", x_codes, rows, w.shape.inputs);
}

void Validate(const QuantiseRowsArgs& args) {
  Require(args.x.rank() == 2, "x: expected 2 dimensions, got {}", args.x.rank());
  RequireDType("x", args.x, DType::kBf16);
  RequireRows(args.x.dim(0));
  Require(args.x.dim(1) <= kMaxWidth, "x: expected at most {} inputs, got {}", kMaxWidth,
          args.x.dim(1));
  RequireQuantised("to", args.to, args.x.dim(0), args.x.dim(1));
}

void Validate(const GemmArgs& args) {
  RequireWeights("w", args.w);
  const int64_t outputs = args.w.shape.outputs;
  RequireX(args.x, args.x_codes, RequireY(args.y, args.w), args.w);
  Require(args.bias == nullptr || args.w.count == 1, "bias: expected one matrix, got {}",
          args.w.count);
  if (!args.up.empty()) {
    RequireSameWeights(args.up, args.w);
    Require(args.bias == nullptr && args.w.count == 1,
            "up: expected one matrix and no bias, got {}{}", args.w.count,
            args.bias == nullptr ? "" : " with a bias");
  }
  Require(args.w.count == 1 || (args.x_step >= 0 && args.y_step >= outputs),
          "x_step, y_step: expected at least 0 and {}, got {} and {}", outputs, args.x_step,
          args.y_step);
}

void QuantiseRows(const QuantiseRowsArgs& args, const Stream& stream) {
  Validate(args);
  if (args.x.dim(0) == 0) return;
  LaunchQuantise({.x = reinterpret_cast<const uint16_t*>(FirstByte(args.x)),
                  .x_stride = args.x.stride(0),
                  .to = CodeRowsOf(args.to),
                  .rows = args.to.rows,
                  .inputs = static_cast<int32_t>(args.to.inputs),
                  .blocks = static_cast<int32_t>(ScaleBlocks(args.to.inputs))},
                 stream);
}

TileParams MakeTileParams(const ConstTensorView& x, const QuantisedRows& x_codes,
                          const WeightView& w, const TensorView& y) {
  TileParams p;
  if (x_codes.empty()) {
    p.x = FirstByte(x);
    p.x_row_bytes = 2 * x.stride(0);
  } else {
    p.x = reinterpret_cast<const std::byte*>(x_codes.codes);
    p.x_row_bytes = x_codes.code_stride;
    p.x_scales = x_codes.scales;
    p.x_scale_stride = x_codes.scale_stride;
  }
  const int64_t element = WeightBytes(w.format);
  p.w[0] = p.w[1] = w.data;
  p.w_row_bytes = w.row_stride * element;
  p.w_batch_bytes = w.count > 1 ? w.matrix_stride * element : 0;
  p.w_scales[0] = p.w_scales[1] = w.scales;
  p.w_scale_stride = w.scale_stride;
  p.w_scale_batch = w.scale_matrix_stride;
  p.y = FirstByte(y);
  p.y_stride = y.stride(0);
  p.y_is_f32 = y.dtype() == DType::kF32;
  p.rows = static_cast<int32_t>(y.dim(0));
  p.outputs = static_cast<int32_t>(w.shape.outputs);
  p.inputs = static_cast<int32_t>(w.shape.inputs);
  p.split_inputs = static_cast<int32_t>(GemmSplitInputs(p.inputs, 1, MathOf(x_codes, w)));
  p.y_in_pairs =
      p.y_stride % 2 == 0 && IsMultiple(p.y, static_cast<uintptr_t>(2 * DTypeBytes(y.dtype())));
  return p;
}

TileParams MakeTileParams(const GemmArgs& args) {
  TileParams p = MakeTileParams(args.x, args.x_codes, args.w, args.y);
  p.bias = args.bias;
  if (!args.up.empty()) {
    p.gated = true;
    p.w[1] = args.up.data;
    p.w_scales[1] = args.up.scales;
  }
  if (args.w.count > 1) {
    p.num_batches = static_cast<int32_t>(args.w.count);
    p.x_batch_bytes = 2 * args.x_step;
    p.y_batch = args.y_step;
    p.y_in_pairs = p.y_in_pairs && args.y_step % 2 == 0;
  }
  p.num_splits = GemmRanges(args);
  p.split_inputs =
      static_cast<int32_t>(GemmSplitInputs(p.inputs, p.num_splits, MathOf(args.x_codes, args.w)));
  return p;
}

TileChoice ChooseTile(const TileParams& p, const QuantisedRows& x_codes, const WeightView& w,
                      int64_t rows, std::optional<TileSize> size) {
  const TileMath math = MathOf(x_codes, w);
  const bool is_aligned = InWholeGroups(p.x, p.x_row_bytes, p.x_batch_bytes) &&
                          InWholeGroups(p.w[0], p.w_row_bytes, p.w_batch_bytes) &&
                          InWholeGroups(p.w[1], p.w_row_bytes, p.w_batch_bytes);
  if (!is_aligned) {
    return {.math = math, .size = TileSize::kMedium, .loads = TileLoads::kUnaligned};
  }
  // Boxes are of pairs of codes: the last of an odd number would not be in one.
  if (math == TileMath::kFp8 && p.inputs % 2 != 0) size = TileSize::kMedium;
  const TileSize suits = size.value_or(SizeThatSuits(p, math, rows));
  return {.math = math, .size = NearestOf(math, p, suits), .loads = TileLoads::kAligned};
}

// Each multiprocessor takes tile after tile, so all of them take as long as those of one, which are as long as they are
// wide; but of the same products wide ones are done an eighth sooner, in pairs. A narrow one in a pair gains only where its
// inputs are cut, and by itself a row tile has nobody to share with; of experts some have several.
TileSize LargeTileOfCodes(const TileParams& p, int64_t rows) {
  const bool has_experts = p.offsets != nullptr;
  const int64_t matrices = has_experts ? p.num_experts : p.num_batches;
  const auto time_of = [&](TileSize size) {
    const TileExtent tile = ExtentOf(size);
    const int64_t outputs = p.gated ? tile.outputs / 2 : tile.outputs;
    const int64_t tiles =
        matrices * CeilDiv(rows, int64_t{tile.rows}) * CeilDiv(int64_t{p.outputs}, outputs);
    return CeilDiv(tiles, int64_t{kMultiprocessors}) * tile.outputs;
  };
  const bool is_cut = p.num_splits > 1;
  const bool is_wide =
      !is_cut && 8 * time_of(TileSize::kPrefillWide) <= 9 * time_of(TileSize::kPrefill);
  const bool has_neighbours = has_experts || rows > ExtentOf(TileSize::kPrefill).rows;
  const bool is_pair = has_neighbours && (has_experts || is_wide || is_cut);
  if (is_wide) return is_pair ? TileSize::kPrefillWidePair : TileSize::kPrefillWide;
  return is_pair ? TileSize::kPrefillPair : TileSize::kPrefill;
}

int32_t GemmRanges(const GemmArgs& args) {
  return GemmSplits(std::max(args.w.whole_outputs, args.w.shape.outputs), args.w.shape.inputs,
                    MathOf(args.x_codes, args.w));
}

bool GemmTakesGate(const GemmArgs& args) {
  if (args.w.format != WeightFormat::kBf16 || args.up.format != args.w.format) return false;
  if (args.up.row_stride != args.w.row_stride) return false;
  const TileParams p = MakeTileParams(args);
  return ChooseTile(p, args.x_codes, args.w, p.rows).loads == TileLoads::kAligned;
}

void Gemm(const GemmArgs& args, const Stream& stream, std::optional<TileSize> size) {
  Validate(args);
  if (args.y.dim(0) == 0) return;
  const TileParams p = MakeTileParams(args);
  const TileChoice tile = ChooseTile(p, args.x_codes, args.w, p.rows, size);
  if (p.gated) {
    const bool adds_ranges = tile.size == TileSize::kPrefill || tile.size == TileSize::kPrefillPair;
    QUIRE_CHECK(GemmTakesGate(args) && (adds_ranges || p.num_splits == 1),
                "gate and up of {} ranges by tiles of {} rows", p.num_splits,
                ExtentOf(tile.size).rows);
  }
  LaunchTiles(p, tile, stream);
}

ByteOffset WeightViewBytes(const WeightView& w) {
  int64_t bytes = w.shape.outputs * w.shape.inputs * WeightBytes(w.format);
  if (w.format == WeightFormat::kFp8Block) {
    bytes += 4 * ScaleBlocks(w.shape.outputs) * ScaleBlocks(w.shape.inputs);
  }
  return ByteOffset(bytes * w.count);
}

ByteOffset GemmBytes(const GemmArgs& args) {
  const auto [outputs, inputs] = args.w.shape;
  const int64_t x_row = args.x_codes.empty() ? 2 * inputs : inputs + 4 * ScaleBlocks(inputs);
  const int64_t y_row = DTypeBytes(args.y.dtype()) * outputs;
  const int64_t matrices = args.up.empty() ? 1 : 2;
  return WeightViewBytes(args.w) * matrices +
         ByteOffset(args.w.count * args.y.dim(0) * (x_row + y_row));
}

double GemmFlops(const GemmArgs& args) {
  const double matrices = args.up.empty() ? 1 : 2;
  return 2.0 * matrices * static_cast<double>(args.w.count) * static_cast<double>(args.y.dim(0)) *
         static_cast<double>(args.w.shape.inputs) * static_cast<double>(args.w.shape.outputs);
}

}  // namespace quire::cuda
