// Weights in the layout of the CPU's kernels (kernels/gemm.h): panels, in the type that they are stored
// in.
#ifndef QUIRE_KERNELS_CPU_WEIGHT_PACKER_H_
#define QUIRE_KERNELS_CPU_WEIGHT_PACKER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/executor.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/gemm.h"
#include "kernels/weight.h"

namespace quire::cpu {

// Matrix i of a weight that this packer made.
PackedMatrix MatrixOf(const Weight& weight, int64_t i = 0);

class CpuWeightPacker final : public WeightPacker {
 public:
  // `progress` is told what has been packed so far. The carver and the executor outlive this.
  CpuWeightPacker(Carver& carver, Executor& executor, LoadProgress progress = {})
      : carver_(carver), executor_(executor), progress_(std::move(progress)) {}

  MemorySide side() const override { return MemorySide::kHost; }
  bool counting() const override { return carver_.counting(); }
  Executor& executor() override { return executor_; }
  // As stored; e4m3 becomes f32, exactly, where heads cut across blocks, and where blocks do not fit
  // the chunks of a packed matrix.
  WeightFormat FormatOf(WeightFormat stored, WeightUse use, ScaleBlock block) const override;
  Weight Reserve(MatrixShape shape, int64_t count, WeightFormat format) override;
  void Fill(const Weight& weight, int64_t first, std::span<const MatrixSource> sources,
            const std::string& name) override;
  std::span<const float> Floats(int64_t count, FunctionRef<void(std::span<float>)> fill) override;
  void Finish() override {}

 private:
  Carver& carver_;
  Executor& executor_;
  LoadProgress progress_;
};

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_WEIGHT_PACKER_H_
