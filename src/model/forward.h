// The forward pass of the DeepSeek family on the CPU.
//
// Every token is computed in latent form, by arithmetic that depends on its own sequence and position
// alone (docs/numerics.md): batches, chunks, pages and threads change no bit.
#ifndef QUIRE_MODEL_FORWARD_H_
#define QUIRE_MODEL_FORWARD_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/executor.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/gemm.h"
#include "kernels/mla_attention.h"
#include "model/config.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace quire {

// Where the time of a step goes.
enum class ForwardPart { kEmbedding, kProjections, kAttention, kMlp, kHead };
inline constexpr ForwardPart kForwardParts[] = {ForwardPart::kEmbedding, ForwardPart::kProjections,
                                                ForwardPart::kAttention, ForwardPart::kMlp,
                                                ForwardPart::kHead};

// Adds the time since the last lap to a part.
class PartClock {
 public:
  void Restart() { last_ = Clock::now(); }
  void Lap(ForwardPart part) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(part)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  double seconds(ForwardPart part) const { return seconds_[static_cast<size_t>(part)]; }
  void Reset() { seconds_ = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::array<double, std::size(kForwardParts)> seconds_{};
};

// What lies between a step's tokens and its logits, for a number of tokens at most. Every value is
// written before it is read, in every step.
struct ForwardBuffers {
  std::span<float> hidden = {};      // [num_tokens, hidden]
  std::span<float> normed = {};      // [num_tokens, hidden]
  std::span<float> update = {};      // [num_tokens, hidden]: what a branch adds
  std::span<float> q_down = {};      // [num_tokens, q_lora_rank]
  std::span<float> q = {};           // [num_tokens, num_heads, nope_dim + rope_dim]
  std::span<float> kv = {};          // [num_tokens, latent_dim + rope_dim]
  std::span<float> q_latent = {};    // [num_tokens, num_heads, latent_dim + rope_dim]
  std::span<float> out_latent = {};  // [num_tokens, num_heads, latent_dim]
  std::span<float> out = {};         // [num_tokens, num_heads, value_dim]
  std::span<float> cos = {};         // [num_tokens, rope_dim / 2]
  std::span<float> sin = {};
  std::span<float> gate_up = {};        // [num_tokens, 2 * width] of the dense or shared MLP
  std::span<float> activated = {};      // [num_tokens, width]
  std::span<float> route_logits = {};   // [num_tokens, num_experts]
  std::span<float> route_weights = {};  // [num_tokens, top_k]
  std::span<int32_t> route_experts = {};
  std::span<int32_t> route_rows = {};      // [num_tokens, top_k]: the choice's row below
  std::span<int32_t> expert_offsets = {};  // [num_experts + 1]
  std::span<float> expert_rows = {};       // [num_tokens * top_k, hidden], ordered by expert
  std::span<float> expert_gate_up = {};    // [num_tokens * top_k, 2 * expert_width]
  std::span<float> expert_activated = {};  // [num_tokens * top_k, expert_width]
  std::span<MatmulArgs> products = {};
  std::span<std::byte> attention = {};
};

// Sizes and takes the buffers of steps of this capacity.
ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             const WorkShape& work, Carver& carver);

struct ForwardArgs {
  std::span<const int32_t> tokens;        // [num_tokens], in the vocabulary
  std::span<const TokenCount> positions;  // [num_tokens]
  std::span<const Slot> slots;            // [num_tokens]: where each token's rows go
  const Plan& plan;                       // of these tokens
  std::span<const KvStore> stores;        // [num_layers]
  const ForwardBuffers& buffers;
};

class Model {
 public:
  // `weights` view memory that outlives the model. `context` is the longest sequence to come.
  Model(ModelConfig config, ModelWeights weights, TokenCount context);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }

  // [num_tokens, hidden]: the last layer's output, in buffers.hidden. Writes the tokens' rows to
  // the stores. Allocates nothing.
  TensorView Forward(const ForwardArgs& args, Executor& executor, PartClock& clock) const;

  // logits[i] = head(norm(hidden row i)); `normed` is scratch of hidden's shape.
  void Logits(ConstTensorView hidden, TensorView normed, TensorView logits, Executor& executor,
              PartClock& clock) const;

 private:
  ModelConfig config_;
  ModelWeights weights_;
  RopeTable rope_;
  float softmax_scale_;
};

// How the config's attention looks to its kernel.
MlaShape AttentionShape(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_MODEL_FORWARD_H_
