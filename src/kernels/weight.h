// Weights as ops take them: matrices that a backend has laid out for its own kernels.
#ifndef QUIRE_KERNELS_WEIGHT_H_
#define QUIRE_KERNELS_WEIGHT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/gemm.h"

namespace quire {

// `count` matrices of one shape and format at equal distances: one projection, the heads of an
// absorbed one, the experts of a layer. Where and in which order the elements lie is the backend's;
// the memory belongs to whoever loaded them.
struct Weight {
  MatrixShape shape = {};
  int64_t count = 1;
  WeightFormat format = WeightFormat::kF32;
  const std::byte* data = nullptr;
  int64_t step_bytes = 0;         // from one matrix to the next
  const float* scales = nullptr;  // of kFp8Block, where a backend keeps them apart from the codes
  int64_t scale_step = 0;         // scales from one matrix to the next
  ByteOffset bytes = {};          // of all matrices, with their scales
  // Of the matrix that ranks have shared out, where this is a rank's part of one: sums may be cut as its
  // size says, so that all parts have the bits of the whole.
  int64_t whole_outputs = 0;

  bool empty() const { return data == nullptr; }
};

// `count` of the matrices, from `first` on. Of an empty weight nothing.
Weight PartOf(const Weight& weight, int64_t first, int64_t count);

// What a matrix is for, which decides how a backend keeps it.
enum class WeightUse {
  kProduct,  // of activations
  kTable,  // rows that are looked up, the router, an indexer's gate: never with scales on a device
  kHeads,  // cut out of a larger matrix, across its blocks of scales
};

// Rows and columns of the stored matrix that share a scale.
struct ScaleBlock {
  int32_t outputs = 128;
  int32_t inputs = 128;
};

// Bytes that have been brought so far; called from the loading thread.
using LoadProgress = std::function<void(ByteOffset loaded)>;

// Brings weights into a backend's memory and layout. Over a Carver that only counts, everything is
// sized and nothing is read: weights are then empty. For one thread at a time.
class WeightPacker {
 public:
  virtual ~WeightPacker() = default;

  virtual MemorySide side() const = 0;
  virtual bool counting() const = 0;
  // For whoever prepares what is packed.
  virtual Executor& executor() = 0;

  // The format in which matrices that are stored as `stored` are kept.
  virtual WeightFormat FormatOf(WeightFormat stored, WeightUse use, ScaleBlock block) const = 0;
  // Takes the memory of `count` matrices.
  virtual Weight Reserve(MatrixShape shape, int64_t count, WeightFormat format) = 0;
  // Fills matrices `first`, `first` + 1, ... of a weight that was reserved. The sources, of tensor
  // `name`, have been read when it returns.
  virtual void Fill(const Weight& weight, int64_t first, std::span<const MatrixSource> sources,
                    const std::string& name) = 0;
  // Takes memory for `count` floats and has `fill` write them. Empty while only counting, and then
  // `fill` is not called.
  virtual std::span<const float> Floats(int64_t count,
                                        FunctionRef<void(std::span<float>)> fill) = 0;
  // Returns when all that was packed is where it belongs.
  virtual void Finish() = 0;
};

}  // namespace quire

#endif  // QUIRE_KERNELS_WEIGHT_H_
