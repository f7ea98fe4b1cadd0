// Weights in device memory, as the kernels of kernels/cuda read them: row-major, bf16, or e4m3 with a
// scale per 128 x 128 block where the files have that.
#ifndef QUIRE_KERNELS_CUDA_WEIGHT_PACKER_H_
#define QUIRE_KERNELS_CUDA_WEIGHT_PACKER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/executor.h"
#include "base/narrow_float.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/upload.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/weight.h"

namespace quire::cuda {

// A weight that this packer made, as products take it.
WeightView ViewOf(const Weight& weight);

class CudaWeightPacker final : public WeightPacker {
 public:
  // `progress` is told the bytes that are on their way. The carver, of device memory or only counting,
  // and the executor outlive this. Throws DeviceError.
  CudaWeightPacker(Carver& carver, Executor& executor, LoadProgress progress = {});

  MemorySide side() const override { return MemorySide::kDevice; }
  bool counting() const override { return carver_.counting(); }
  Executor& executor() override { return executor_; }
  // bf16; e4m3 stays where its blocks are 128 x 128 and nothing cuts across them.
  WeightFormat FormatOf(WeightFormat stored, WeightUse use, ScaleBlock block) const override;
  Weight Reserve(MatrixShape shape, int64_t count, WeightFormat format) override;
  void Fill(const Weight& weight, int64_t first, std::span<const MatrixSource> sources,
            const std::string& name) override;
  std::span<const float> Floats(int64_t count, FunctionRef<void(std::span<float>)> fill) override;
  void Finish() override;

 private:
  void FillBf16(std::span<Bf16> to, std::span<const MatrixSource> sources);
  void Send(std::span<const std::byte> from, std::span<std::byte> to);
  void Report(ByteOffset done) const;

  Carver& carver_;
  Executor& executor_;
  LoadProgress progress_;
  std::optional<Uploader> uploader_;  // none while only counting
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_WEIGHT_PACKER_H_
