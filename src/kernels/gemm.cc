#include "kernels/gemm.h"

#include <cstdint>

#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

// Both dimensions of a packed matrix: sizes then fit 64 bits with much to spare.
constexpr int64_t kMaxExtent = int64_t{1} << 28;

void RequireMatrixShape(MatrixShape shape) {
  Require(shape.outputs >= 1 && shape.outputs <= kMaxExtent,
          "matrix.outputs: expected 1..{}, got {}", kMaxExtent, shape.outputs);
  Require(shape.inputs >= 1 && shape.inputs <= kMaxExtent, "matrix.inputs: expected 1..{}, got {}",
          kMaxExtent, shape.inputs);
}

void RequireScales(const MatrixSource& source) {
  Require(source.scales != nullptr, "source.scales: expected one per block, got none");
  Require(source.block_outputs >= 1 && source.block_inputs >= 1,
          "source.block: expected at least 1 x 1, got {} x {}", source.block_outputs,
          source.block_inputs);
  Require(source.first_output >= 0 && source.first_input >= 0,
          "source.first: expected at least (0, 0), got ({}, {})", source.first_output,
          source.first_input);
}

// Whether every chunk of inputs lies in one block.
bool ChunksAreInBlocks(const MatrixSource& source) {
  const int64_t in_block = source.first_input % source.block_inputs;
  if (in_block + source.shape.inputs <= source.block_inputs) return true;
  return source.block_inputs % kChunkInputs == 0 && in_block % kChunkInputs == 0;
}

void RequireF32(const char* name, const ConstTensorView& view) {
  Require(view.dtype() == DType::kF32, "{}: expected {}, got {}", name, DTypeName(DType::kF32),
          DTypeName(view.dtype()));
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kFp8Block:
      return "fp8_block";
  }
  return "unknown";
}

int64_t WeightBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return 4;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return 2;
    case WeightFormat::kFp8Block:
      return 1;
  }
  QUIRE_CHECK(false, "weight format {}", static_cast<int>(format));
  return 0;
}

int64_t ChunkBytes(int64_t inputs, WeightFormat format) {
  const int64_t scales = format == WeightFormat::kFp8Block ? 4 * kPanelOutputs : 0;
  return scales + inputs * kPanelOutputs * WeightBytes(format);
}

int64_t PanelBytes(int64_t inputs, WeightFormat format) {
  const int64_t whole = inputs / kChunkInputs * ChunkBytes(kChunkInputs, format);
  const int64_t rest = inputs % kChunkInputs;
  return RoundUp(whole + (rest > 0 ? ChunkBytes(rest, format) : 0),
                 static_cast<int64_t>(kPackedAlignment));
}

ByteOffset PackedBytes(MatrixShape shape, WeightFormat format) {
  RequireMatrixShape(shape);
  return ByteOffset(PanelBytes(shape.inputs, format)) * CeilDiv(shape.outputs, kPanelOutputs);
}

PackedMatrix ViewPacked(MatrixShape shape, WeightFormat format, std::span<const std::byte> memory) {
  const ByteOffset need = PackedBytes(shape, format);
  Require(ByteOffset(memory.size()) >= need,
          "packed memory: expected {} bytes ({} outputs x {} inputs, {}), got {}", need,
          shape.outputs, shape.inputs, WeightFormatName(format), memory.size());
  Require(reinterpret_cast<uintptr_t>(memory.data()) % kPackedAlignment == 0,
          "packed memory: expected an address aligned to {}, got {} past one", kPackedAlignment,
          reinterpret_cast<uintptr_t>(memory.data()) % kPackedAlignment);
  PackedMatrix matrix;
  matrix.shape_ = shape;
  matrix.format_ = format;
  matrix.data_ = memory.data();
  return matrix;
}

void Validate(const MatrixSource& source, WeightFormat format) {
  RequireMatrixShape(source.shape);
  Require(source.data != nullptr, "source.data: expected {} x {} elements, got none",
          source.shape.outputs, source.shape.inputs);
  Require(format == source.format || format == WeightFormat::kF32,
          "pack: expected format {} or f32, got {}", WeightFormatName(source.format),
          WeightFormatName(format));
  if (source.format != WeightFormat::kFp8Block) return;
  RequireScales(source);
  Require(format == WeightFormat::kF32 || ChunksAreInBlocks(source),
          "pack: expected no block boundary within {} inputs to keep fp8_block, got blocks of {} "
          "inputs and first input {}; f32 takes any",
          kChunkInputs, source.block_inputs, source.first_input);
}

void Validate(const MatmulArgs& args) {
  Require(!args.w.empty(), "w: expected a packed matrix, got none");
  const MatrixShape shape = args.w.shape();
  const int64_t num_rows = args.x.rank() == 2 ? args.x.dim(0) : 0;
  RequireShape("x", args.x, {num_rows, shape.inputs});
  RequireShape("y", args.y, {num_rows, shape.outputs});
  RequireF32("x", args.x);
  RequireF32("y", args.y);
  Require(args.bias.empty() || std::ssize(args.bias) == shape.outputs,
          "bias: expected {} values or none, got {}", shape.outputs, args.bias.size());
}

ByteOffset MatmulBytes(const MatmulArgs& args) {
  const MatrixShape shape = args.w.shape();
  const int64_t weights = PackedBytes(shape, args.w.format()).raw();
  return ByteOffset(weights + 4 * args.x.dim(0) * (shape.inputs + shape.outputs) +
                    4 * std::ssize(args.bias));
}

double MatmulFlops(const MatmulArgs& args) {
  const MatrixShape shape = args.w.shape();
  return 2.0 * static_cast<double>(args.x.dim(0)) * static_cast<double>(shape.inputs) *
         static_cast<double>(shape.outputs);
}

}  // namespace quire
