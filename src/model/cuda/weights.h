// The weights of a model in device memory, as the kernels of kernels/cuda read them: row-major, bf16,
// or e4m3 with a scale per 128 x 128 block where the files have that.
#ifndef QUIRE_MODEL_CUDA_WEIGHTS_H_
#define QUIRE_MODEL_CUDA_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "device/arena.h"
#include "kernels/cuda/gemm.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "model/weights.h"

namespace quire::cuda {

// Of one MLP, or of all experts of a layer: count of each view is their number.
struct MlpWeights {
  WeightView gate = {};
  WeightView up = {};
  WeightView gate_up = {};  // of one MLP: both as one matrix, gate first; empty if they cannot be
  WeightView down = {};
};

// Latent form, as quire::AttentionWeights.
struct AttentionWeights {
  WeightView q_down = {};  // empty without q_lora
  const float* q_down_bias = nullptr;
  std::span<const float> q_norm = {};
  WeightView q_up = {};
  WeightView kv_down = {};
  const float* kv_down_bias = nullptr;
  std::span<const float> kv_norm = {};
  WeightView key_heads = {};    // [num_heads] nope_dim -> latent_dim
  WeightView value_heads = {};  // [num_heads] latent_dim -> value_dim
  WeightView out = {};
  const float* out_bias = nullptr;
};

struct LayerWeights {
  LayerKind kind = LayerKind::kDense;
  std::span<const float> attention_norm = {};
  AttentionWeights attention = {};
  std::span<const float> mlp_norm = {};
  MlpWeights mlp = {};  // kDense: the layer's; kMoe: the shared experts', empty if there are none
  WeightView router = {};
  std::span<const float> router_bias = {};
  MlpWeights experts = {};
};

struct ModelWeights {
  ConstTensorView embedding = {};  // [vocab, hidden] bf16
  std::vector<LayerWeights> layers = {};
  std::span<const float> final_norm = {};  // times the config's logit scale
  WeightView head = {};
};

// Takes the weights' memory from `carver`, of the device, and brings them there. With a Carver that
// only counts, everything is checked and nothing is read. f32 and f16 become bf16; so do e4m3 blocks
// that are not 128 x 128, and those of kv_b, which heads cut across. `progress` is told the bytes
// that are on their way. Throws as WeightSource does, and DeviceError.
ModelWeights LoadWeights(const ModelConfig& config, WeightSource& source, Carver& carver,
                         Executor& executor, const LoadProgress& progress = {});

}  // namespace quire::cuda

#endif  // QUIRE_MODEL_CUDA_WEIGHTS_H_
