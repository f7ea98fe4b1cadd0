#include "kernels/cpu/weight_packer.h"

#include "base/maths.h"
#include "kernels/cpu/gemm.h"

namespace quire::cpu {

PackedMatrix MatrixOf(const Weight& weight, int64_t i) {
  const ByteOffset bytes = PackedBytes(weight.shape, weight.format);
  return ViewPacked(weight.shape, weight.format,
                    {weight.data + i * weight.step_bytes, static_cast<size_t>(bytes.raw())});
}

WeightFormat CpuWeightPacker::FormatOf(WeightFormat stored, WeightUse use, ScaleBlock block) const {
  if (stored != WeightFormat::kFp8Block) return stored;
  const bool fits = use != WeightUse::kHeads && block.inputs % kChunkInputs == 0;
  return fits ? stored : WeightFormat::kF32;
}

Weight CpuWeightPacker::Reserve(MatrixShape shape, int64_t count, WeightFormat format) {
  const int64_t step =
      RoundUp(PackedBytes(shape, format).raw(), static_cast<int64_t>(kPackedAlignment));
  const std::span<std::byte> memory = carver_.TakeBytes(ByteOffset(step) * count);
  return {.shape = shape,
          .count = count,
          .format = format,
          .data = memory.data(),
          .step_bytes = step,
          .bytes = PackedBytes(shape, format) * count};
}

void CpuWeightPacker::Fill(const Weight& weight, int64_t first,
                           std::span<const MatrixSource> sources, const std::string&) {
  const auto bytes = static_cast<size_t>(PackedBytes(weight.shape, weight.format).raw());
  for (const MatrixSource& source : sources) {
    // The memory was handed out as writable by Reserve; views of weights are of what is complete.
    auto* to = const_cast<std::byte*>(weight.data) + first++ * weight.step_bytes;
    Pack(source, weight.format, {to, bytes}, executor_);
  }
  if (progress_) progress_(carver_.used());
}

std::span<const float> CpuWeightPacker::Floats(int64_t count,
                                               FunctionRef<void(std::span<float>)> fill) {
  const std::span<float> values = carver_.Take<float>(count);
  if (!carver_.counting()) fill(values);
  return values;
}

}  // namespace quire::cpu
