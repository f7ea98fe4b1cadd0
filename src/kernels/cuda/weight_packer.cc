#include "kernels/cuda/weight_packer.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/maths.h"

namespace quire::cuda {
namespace {

template <class T>
T Load(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Element (n, k) of a matrix, widened exactly.
float ElementAt(const MatrixSource& source, int64_t n, int64_t k) {
  const int64_t at = n * source.output_stride + k * source.input_stride;
  switch (source.format) {
    case WeightFormat::kF32:
      return Load<float>(source.data, at);
    case WeightFormat::kF16:
      return ToFloat(Load<F16>(source.data, at));
    case WeightFormat::kBf16:
      return ToFloat(Load<Bf16>(source.data, at));
    case WeightFormat::kFp8Block:
      break;
  }
  const int64_t block = (source.first_output + n) / source.block_outputs * source.scale_stride +
                        (source.first_input + k) / source.block_inputs * source.scale_input_stride;
  return ToFloat(Load<Fp8E4m3>(source.data, at)) * Load<float>(source.scales, block);
}

int64_t Elements(MatrixShape shape) { return shape.outputs * shape.inputs; }
int64_t Blocks(MatrixShape shape) {
  return CeilDiv(shape.outputs, int64_t{kScaleBlock}) * CeilDiv(shape.inputs, int64_t{kScaleBlock});
}

bool IsContiguous(const MatrixSource& source) {
  return source.input_stride == 1 && source.output_stride == source.shape.inputs;
}

}  // namespace

WeightView ViewOf(const Weight& weight) {
  WeightView view =
      weight.format == WeightFormat::kFp8Block
          ? Fp8Weights(reinterpret_cast<const Fp8E4m3*>(weight.data), weight.scales, weight.shape,
                       weight.count)
          : DenseWeights(reinterpret_cast<const Bf16*>(weight.data), weight.shape, weight.count);
  view.whole_outputs = weight.whole_outputs;
  return view;
}

CudaWeightPacker::CudaWeightPacker(Carver& carver, Executor& executor, LoadProgress progress)
    : carver_(carver), executor_(executor), progress_(std::move(progress)) {
  if (!carver.counting()) uploader_.emplace(executor);
}

WeightFormat CudaWeightPacker::FormatOf(WeightFormat stored, WeightUse use,
                                        ScaleBlock block) const {
  const bool is_native = stored == WeightFormat::kFp8Block && use == WeightUse::kProduct &&
                         block.outputs == kScaleBlock && block.inputs == kScaleBlock;
  return is_native ? WeightFormat::kFp8Block : WeightFormat::kBf16;
}

Weight CudaWeightPacker::Reserve(MatrixShape shape, int64_t count, WeightFormat format) {
  Weight weight{.shape = shape, .count = count, .format = format};
  if (format == WeightFormat::kFp8Block) {
    weight.step_bytes = Elements(shape);
    weight.scale_step = Blocks(shape);
    weight.data =
        reinterpret_cast<const std::byte*>(carver_.Take<Fp8E4m3>(Elements(shape) * count).data());
    weight.scales = carver_.Take<float>(Blocks(shape) * count).data();
  } else {
    weight.step_bytes = Elements(shape) * static_cast<int64_t>(sizeof(Bf16));
    weight.data =
        reinterpret_cast<const std::byte*>(carver_.Take<Bf16>(Elements(shape) * count).data());
  }
  weight.bytes = ByteOffset(
      (weight.step_bytes + weight.scale_step * static_cast<int64_t>(sizeof(float))) * count);
  return weight;
}

void CudaWeightPacker::Fill(const Weight& weight, int64_t first,
                            std::span<const MatrixSource> sources, const std::string& name) {
  // The memory was handed out as writable by Reserve; views of weights are of what is complete.
  auto* const to = const_cast<std::byte*>(weight.data) + first * weight.step_bytes;
  if (weight.format != WeightFormat::kFp8Block) {
    FillBf16(
        {reinterpret_cast<Bf16*>(to), static_cast<size_t>(Elements(weight.shape)) * sources.size()},
        sources);
    return;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const MatrixSource& from = sources[i];
    Require(IsContiguous(from) && from.scale_input_stride == 1 &&
                from.scale_stride == CeilDiv(weight.shape.inputs, int64_t{kScaleBlock}),
            "tensor '{}': expected contiguous codes and scales", name);
    const int64_t matrix = static_cast<int64_t>(i);
    const auto codes = static_cast<size_t>(weight.step_bytes);
    Send({from.data, codes}, {to + matrix * weight.step_bytes, codes});
    const size_t scales = static_cast<size_t>(weight.scale_step) * sizeof(float);
    auto* const to_scales =
        const_cast<float*>(weight.scales) + (first + matrix) * weight.scale_step;
    QUIRE_CHECK(from.first_output % kScaleBlock == 0 && from.first_input == 0,
                "tensor '{}': cut within a block of scales, at {}", name, from.first_output);
    const int64_t first_scale = from.first_output / kScaleBlock * from.scale_stride;
    Send({from.scales + first_scale * static_cast<int64_t>(sizeof(float)), scales},
         {reinterpret_cast<std::byte*>(to_scales), scales});
  }
}

// Rows of bf16: as they are where they can be, or made a row at a time.
void CudaWeightPacker::FillBf16(std::span<Bf16> to, std::span<const MatrixSource> sources) {
  const MatrixSource& first = sources.front();
  if (sources.size() == 1 && first.format == WeightFormat::kBf16 && IsContiguous(first)) {
    Send({first.data, to.size_bytes()}, std::as_writable_bytes(to));
    return;
  }
  const int64_t width = first.shape.inputs;
  const ByteOffset row_bytes(static_cast<int64_t>(sizeof(Bf16)) * width);
  uploader_->UploadMade(
      std::as_writable_bytes(to), row_bytes,
      [&](std::span<std::byte> piece, ByteOffset begin) {
        const int64_t first_row = begin.raw() / row_bytes.raw();
        Bf16* const out = reinterpret_cast<Bf16*>(piece.data());
        executor_.Run(std::ssize(piece) / row_bytes.raw(), [&](int64_t row) {
          const int64_t n = first_row + row;
          const MatrixSource& from = sources[static_cast<size_t>(n / first.shape.outputs)];
          for (int64_t k = 0; k < width; ++k) {
            out[row * width + k] = ToBf16(ElementAt(from, n % first.shape.outputs, k));
          }
        });
      },
      [&](ByteOffset done) { Report(done); });
}

std::span<const float> CudaWeightPacker::Floats(int64_t count,
                                                FunctionRef<void(std::span<float>)> fill) {
  const std::span<float> to = carver_.Take<float>(count);
  if (carver_.counting()) return {};
  std::vector<float> values(static_cast<size_t>(count));
  fill(values);
  Send(std::as_bytes(std::span<const float>(values)), std::as_writable_bytes(to));
  return to;
}

void CudaWeightPacker::Finish() {
  if (uploader_) uploader_->Finish();
}

void CudaWeightPacker::Send(std::span<const std::byte> from, std::span<std::byte> to) {
  uploader_->Upload(from, to, [&](ByteOffset done) { Report(done); });
}

void CudaWeightPacker::Report(ByteOffset done) const {
  if (progress_) progress_(done);
}

}  // namespace quire::cuda
