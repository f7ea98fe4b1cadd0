// The forward pass of the DeepSeek family on the device.
//
// Residual stream f32, activations bf16, sums f32 (docs/numerics.md). One description of the pass
// serves three ends: launching it, recording it into a graph, and planning its matrix products.
#ifndef QUIRE_MODEL_CUDA_FORWARD_H_
#define QUIRE_MODEL_CUDA_FORWARD_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_planner.h"
#include "model/config.h"
#include "model/cuda/part_marks.h"
#include "model/cuda/weights.h"
#include "model/rope_table.h"

namespace quire::cuda {

// What lies between a step's tokens and its logits, for exactly capacity.query_tokens tokens. Every
// value is written before it is read, in every step.
struct ForwardBuffers {
  std::span<float> hidden = {};     // [tokens, hidden]
  std::span<Bf16> normed = {};      // [tokens, hidden]
  std::span<Bf16> update = {};      // [tokens, hidden]: what a branch adds
  std::span<Bf16> q_down = {};      // [tokens, q_lora_rank]
  std::span<Bf16> q = {};           // [tokens, heads, nope_dim + rope_dim]
  std::span<float> kv = {};         // [tokens, latent_dim + rope_dim]
  std::span<Bf16> q_latent = {};    // [tokens, heads, latent_dim + rope_dim]
  std::span<Bf16> out_latent = {};  // [tokens, heads, latent_dim]
  std::span<Bf16> out = {};         // [tokens, heads, value_dim]
  std::span<float> cos = {};        // [tokens, rope_dim / 2]
  std::span<float> sin = {};
  std::span<Bf16> gate_up = {};            // [tokens, 2 * width] of the dense or shared MLP
  std::span<Bf16> activated = {};          // [tokens, width]
  std::span<Bf16> shared = {};             // [tokens, hidden] of the shared experts
  std::span<float> route_logits = {};      // [tokens, num_experts]
  std::span<float> route_weights = {};     // [tokens, top_k]
  std::span<int32_t> route_experts = {};   // [tokens, top_k]
  std::span<int32_t> route_rows = {};      // [tokens, top_k]: the choice's row below
  std::span<int32_t> route_sort = {};      // workspace
  std::span<int32_t> expert_offsets = {};  // [num_experts + 1]
  std::span<int32_t> expert_tokens = {};   // [tokens * top_k]: whose row it is, ordered by expert
  std::span<Bf16> expert_activated = {};   // [tokens * top_k, expert_width]
  std::span<Bf16> expert_out = {};         // [tokens * top_k, hidden]
  QuantisedRows codes = {};                // of the widest input, with e4m3 weights
  QuantisedRows side_codes = {};           // the same, of what runs beside
  QuantisedRows expert_codes = {};         // of expert_activated
  std::span<std::byte> attention = {};
};

// Sizes and takes the buffers of steps of this capacity.
ForwardBuffers LayOutForward(const ModelConfig& config, const StepCapacity& capacity,
                             const WorkShape& work, Carver& carver);

// A step, in device memory.
struct ForwardArgs {
  std::span<const int32_t> tokens;        // [capacity.query_tokens]
  std::span<const TokenCount> positions;  // as many
  std::span<const Slot> slots;            // as many: where each token's rows go
  const Plan& plan;
  std::span<const KvStore> stores;  // [num_layers]
  const ForwardBuffers& buffers;
  std::span<int32_t> experts_used = {};  // [num_layers]: how many had rows; 0 in dense layers
  PartMarks* marks = nullptr;            // where the time of a pass is wanted
};

// Rows of the hidden state to the logits that follow them.
struct LogitsArgs {
  ConstTensorView hidden = {};         // [tokens, hidden] f32
  std::span<const int32_t> rows = {};  // [num_rows] of the hidden state, in device memory
  std::span<Bf16> normed = {};         // [num_rows, hidden] scratch
  std::span<float> picked = {};        // [num_rows, hidden] scratch
  TensorView logits = {};              // [num_rows, vocab] f32
  PartMarks* marks = nullptr;
};

class Model {
 public:
  // `weights` view device memory that outlives the model, and so does `rope`: the angles of every
  // position up to `context`, taken from `carver`.
  Model(ModelConfig config, ModelWeights weights, TokenCount context, Carver& carver);

  const ModelConfig& config() const { return config_; }

  // Launches a step. The last layer's output is in buffers.hidden; the tokens' rows are in the stores.
  // What does not wait for each other runs side by side, partly on `branch`, which is joined in the
  // end; that changes no bit.
  void Forward(const ForwardArgs& args, const GemmPlanner& gemms, const Stream& stream,
               Branch& branch, StatusWord status) const;
  void Logits(const LogitsArgs& args, const GemmPlanner& gemms, const Stream& stream,
              StatusWord status) const;

  // Plans every product that the above would launch with these arguments.
  void PlanForward(const ForwardArgs& args, GemmPlanner& gemms) const;
  void PlanLogits(const LogitsArgs& args, GemmPlanner& gemms) const;

  // Bytes of the rope tables.
  static ByteOffset RopeBytes(const ModelConfig& config, TokenCount context);

 private:
  ModelConfig config_;
  ModelWeights weights_;
  float softmax_scale_;
  ConstTensorView cos_;  // [context, rope_dim / 2]
  ConstTensorView sin_;
};

}  // namespace quire::cuda

#endif  // QUIRE_MODEL_CUDA_FORWARD_H_
