// Angles of rotary positions, and the softmax scale that belongs to them.
#ifndef QUIRE_MODEL_ROPE_TABLE_H_
#define QUIRE_MODEL_ROPE_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/weight.h"
#include "model/config.h"

namespace quire {

// Of LongRoPE: whether sequences of a context of this length are computed with the long factors.
inline bool UsesLongFactors(const RopeConfig& rope, TokenCount context) {
  return context > TokenCount(rope.original_context);
}

class RopeTable {
 public:
  // `context` is the longest sequence that will be served: LongRoPE has one set of factors up to
  // the original context and another beyond, and a sequence must not change from one to the other.
  RopeTable(const ModelConfig& config, TokenCount context);

  // Radians per position, of each pair.
  std::span<const float> frequencies() const { return frequencies_; }
  // What cos and sin are multiplied with.
  float magnitude() const { return magnitude_; }

  // cos and sin: [positions.size(), rope_dim / 2] f32. The angle is the f32 product of position and
  // frequency, as the models were trained with. Allocates nothing.
  void Fill(std::span<const TokenCount> positions, TensorView cos, TensorView sin) const;

 private:
  std::vector<float> frequencies_;
  float magnitude_ = 1.0f;
};

// cos and sin of every position below a context, in a backend's memory: [context, rope_dim / 2] f32.
struct RopeAngles {
  ConstTensorView cos = {};
  ConstTensorView sin = {};
};
// Has `packer` take the memory and brings RopeTable's angles there.
RopeAngles MakeRopeAngles(const ModelConfig& config, TokenCount context, WeightPacker& packer);

// (nope_dim + rope_dim)^-1/2, times the square of YaRN's mscale where the model has one.
float SoftmaxScale(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_MODEL_ROPE_TABLE_H_
