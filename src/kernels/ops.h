// What a layer is made of: one table of operations that the model calls, and every backend has.
//
// kernels/cpu/cpu_ops.h computes them at once, on the threads of an Executor. kernels/cuda/cuda_ops.h
// gives them to a stream; which of them become one launch is its own affair. Views and spans are of
// the backend's memory. Rows of activations are of activation(); the residual stream, the new cache
// rows, angles and logits are f32 everywhere. docs/numerics.md has the formulas and the order of
// summation.
//
// All ops check their arguments, throw Error(kInvalidArgument) naming one that cannot be, and take no
// memory: what an op needs besides its arguments was laid out for OpLimits.
#ifndef QUIRE_KERNELS_OPS_H_
#define QUIRE_KERNELS_OPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/mha_prefill.h"
#include "kernels/mla_attention.h"
#include "kernels/quantised_rows.h"
#include "kernels/row_ops.h"
#include "kernels/select_keys.h"
#include "kernels/sparse_attention.h"
#include "kernels/weight.h"

namespace quire {

// Where the time of a forward pass goes.
enum class ForwardPart { kEmbedding, kProjections, kAttention, kMlp, kHead };
inline constexpr ForwardPart kForwardParts[] = {ForwardPart::kEmbedding, ForwardPart::kProjections,
                                                ForwardPart::kAttention, ForwardPart::kMlp,
                                                ForwardPart::kHead};

// What the ops of a step are sized for.
struct OpLimits {
  StepCapacity capacity = {};
  WorkShape work = {};
  MlaShape attention = {};
  int64_t hidden_size = 0;
  int64_t widest_input = 0;  // of any product with block scales, where its codes are yet to be made
  int64_t widest_side_input = 0;  // the same, of products between Fork and Join; 0: there are none
  int64_t logit_rows = 0;         // at once, which may be more than there are tokens
  bool has_block_scales = false;  // some weights are kFp8Block
  RouteShape route = {};
  int64_t expert_width = 0;     // 0: no layer has experts
  IndexShape index = {};        // num_heads 0: attention is not sparse
  WorkShape selection = {};     // of choosing keys, where a backend cuts that apart from attention
  MhaShape heads = {};          // of sequences that attend in multi-head form
  TokenCount expanded_keys{0};  // rows for their keys; 0: there are none
  // Ranks that share experts out and have tokens of their own, each in a step up to so many.
  int32_t expert_ranks = 1;
  int64_t tokens_of_rank = 0;

  int64_t num_tokens() const { return capacity.query_tokens.raw(); }
  int64_t num_choices() const { return expert_width > 0 ? num_tokens() * route.top_k : 0; }
  int32_t num_experts() const { return expert_width > 0 ? route.num_experts : 0; }
  // Rows that may come to the experts of one of these ranks. A token's choices are different experts.
  int64_t num_visitors() const {
    if (expert_ranks == 1) return 0;
    const int32_t own = num_experts() / expert_ranks;
    return expert_ranks * tokens_of_rank * std::min(route.top_k, own);
  }
};

// The most ranks that share experts out with tokens of their own.
inline constexpr int32_t kMaxExpertRanks = 64;

// hidden[t] = scale * table[tokens[t]]. Of several ranks each has some of the tokens; all get all rows.
struct EmbedArgs {
  Weight table = {};        // [vocab, width], or a rank's part of it, kept for WeightUse::kTable
  int64_t first_token = 0;  // of the table
  std::span<const int32_t> tokens = {};  // [num_tokens]
  float scale = 1.0f;
  TensorView hidden = {};  // [num_tokens, width] f32
};

// The rotary angles of a step's tokens.
struct StepAngles {
  ConstTensorView table_cos = {};              // [context, rope_dim / 2] f32: of all positions
  ConstTensorView table_sin = {};              // as table_cos
  std::span<const TokenCount> positions = {};  // [num_tokens]
  TensorView cos = {};                         // [num_tokens, rope_dim / 2] f32: their rows
  TensorView sin = {};                         // as cos
  RopePairs pairs = RopePairs::kInterleaved;

  StepAngles FirstTokens(int64_t count) const {
    StepAngles first = *this;
    first.positions = positions.first(static_cast<size_t>(count));
    first.cos = cos.FirstRows(count);
    first.sin = sin.FirstRows(count);
    return first;
  }
};

// Rows that products read, and the same rows as e4m3 if the op that wrote them was given memory for codes:
// products of codes multiply these then, and make none of their own. An op that overwrites the rows alone
// leaves codes of what was there, so both are given on together, by whoever wrote both.
struct ProductInput {
  ProductInput() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  ProductInput(const ConstTensorView& view, const QuantisedRows& codes_of_view = {})
      : rows(view), codes(codes_of_view) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  ProductInput(const TensorView& view, const QuantisedRows& codes_of_view = {})
      : ProductInput(ConstTensorView(view), codes_of_view) {}

  ProductInput FirstRows(int64_t count) const {
    return {rows.FirstRows(count),
            codes.empty() ? codes : quire::FirstRows(codes, count, codes.inputs)};
  }

  ConstTensorView rows = {};  // [num_rows, inputs] of activation(), any row stride
  QuantisedRows codes = {};
};

// y = x w^T + bias. With w.count > 1 there are as many products: x and y are the first one's, and the
// next one's begin x_step and y_step elements on: heads are columns of wider rows.
struct ProductArgs {
  ProductInput x = {};
  Weight w = {};
  TensorView y = {};                 // [num_rows, outputs] of activation() or f32; overlaps no x
  std::span<const float> bias = {};  // [outputs], or empty; w.count of 1 only
  int64_t x_step = 0;
  int64_t y_step = 0;
};

// y = silu(x gate^T) * (x up^T).
struct GateUpArgs {
  ProductInput x = {};
  Weight gate = {}, up = {};
  TensorView gate_up = {};   // [num_rows, 2 * outputs] of activation(), for the two products
  TensorView y = {};         // [num_rows, outputs] of activation(); overlaps neither
  QuantisedRows codes = {};  // of y, besides, on a device; or none
};

// A layer's new cache rows: row of slots[t] <- [norm(c) | rotate(k)] of [c | k] = kv[t]. The rows of
// kv are overwritten.
struct WriteKvArgs {
  const KvStore& store;                     // a latent format
  std::span<const Slot> slots = {};         // [num_tokens], distinct but for the scratch page
  TensorView kv = {};                       // [num_tokens, latent_dim + rope_dim] f32
  std::span<const float> norm_weight = {};  // [latent_dim]
  float eps = 1e-6f;
  const StepAngles& angles;
};

// y = rotate(x), of all heads.
struct RotateArgs {
  ConstTensorView x = {};  // [num_tokens, num_heads, rope_dim] of activation()
  const StepAngles& angles;
  TensorView y = {};  // as x; may be x
};

// A layer's new index keys: row of slots[t] <- layer_norm(key[t]), its first rope_dim values rotated.
// The rows of key are overwritten.
struct WriteIndexKeysArgs {
  const KvStore& store;                     // a format of index keys
  std::span<const Slot> slots = {};         // [num_tokens], distinct but for the scratch page
  TensorView key = {};                      // [num_tokens, head_dim] f32
  std::span<const float> norm_weight = {};  // [head_dim]
  std::span<const float> norm_bias = {};    // [head_dim]
  float eps = 1e-6f;
  const StepAngles& angles;
};

// y = down(silu(gate(x)) * up(x)) of every chosen expert. Of several ranks each has some experts, or of
// all of them some of the width and of the outputs.
struct ExpertsArgs {
  ProductInput x = {};  // [num_tokens, hidden]
  RouteShape shape = {};
  Weight router = {};
  std::span<const float> router_bias = {};  // [num_experts], or empty
  Weight gate = {};                         // count is the number of experts, of all three
  Weight up = {};
  Weight down = {};
  int64_t first_expert = 0;  // of the three
  int64_t width_unit = 1;    // that the width is cut by
  int32_t* used = nullptr;   // if given: how many experts had rows
};

// What the experts of a layer leave: y[t] = sum_j weights[t, j] * rows[row_of[t, j]] + shared[t], in the
// order of the choice, is yet to be computed. Views of the ops' own memory, until the next Experts.
struct ExpertRows {
  ConstTensorView rows = {};             // [num_tokens * top_k or more, outputs of down]
  std::span<const int32_t> row_of = {};  // [num_tokens, top_k]
  std::span<const float> weights = {};   // [num_tokens, top_k]
  ConstTensorView shared = {};           // [num_tokens, hidden] of the shared experts; or empty
};

// What a sublayer leaves to be added to the residual stream: nothing, rows, or those of experts.
using Update = std::variant<std::monostate, ConstTensorView, ExpertRows>;

// hidden += scale * update
struct AddArgs {
  TensorView hidden = {};  // [num_tokens, width] f32
  Update update = {};
  float scale = 1.0f;
  TensorView scratch = {};  // [num_tokens, width] of activation(): for experts' rows, combined
};

// The same, and then normed = norm(hidden).
struct AddNormArgs {
  AddArgs add = {};
  std::span<const float> weight = {};  // [width]
  float eps = 1e-6f;
  TensorView normed = {};    // [num_tokens, width] of activation()
  QuantisedRows codes = {};  // of normed, besides, on a device; or none
};

// y[i] = x[rows[i]]. On a device a row that x does not have is reported, and row 0 stands in.
struct PickRowsArgs {
  ConstTensorView x = {};              // [num_tokens, width] f32 or activation()
  std::span<const int32_t> rows = {};  // [num_rows]
  TensorView y = {};                   // [num_rows, width] as x; not in x
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual DType activation() const = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  // Fills angles.cos and angles.sin.
  virtual void GatherAngles(const StepAngles& angles) = 0;
  virtual void Norm(const RmsNormArgs& args) = 0;
  virtual void Add(const AddArgs& args) = 0;
  virtual void AddNorm(const AddNormArgs& args) = 0;
  // Independent products; none reads what another writes.
  virtual void Matmul(std::span<const ProductArgs> products) = 0;
  void Matmul(const ProductArgs& product) { Matmul(std::span(&product, 1)); }
  virtual void WriteKv(const WriteKvArgs& args) = 0;
  virtual void Rotate(const RotateArgs& args) = 0;
  // Both, of which neither reads what the other writes.
  virtual void MatmulAndRotate(const ProductArgs& product, const RotateArgs& rotate) {
    Matmul(product);
    Rotate(rotate);
  }
  // With a workspace of its own, whatever the arguments have there.
  virtual void Attend(const MlaAttentionArgs& args) = 0;
  // Of sequences that are expanded, where OpLimits have rows for their keys.
  virtual void AttendExpanded(const AttendExpandedArgs& args) = 0;
  // Sparse attention; the last two with workspaces of their own too.
  virtual void WriteIndexKeys(const WriteIndexKeysArgs& args) = 0;
  virtual void SelectKeys(const SelectKeysArgs& args) = 0;
  virtual void AttendChosen(const SparseAttentionArgs& args) = 0;
  virtual void SiluMul(const SiluMulArgs& args) = 0;
  // Both products, then SiluMul; or all at once, with nothing written to gate_up.
  virtual void GateUp(const GateUpArgs& args) {
    const int64_t width = args.y.dim(1);
    const ProductArgs products[] = {
        {.x = args.x, .w = args.gate, .y = args.gate_up.Columns(0, width)},
        {.x = args.x, .w = args.up, .y = args.gate_up.Columns(width, width)}};
    Matmul(products);
    SiluMul({.gate_up = args.gate_up, .y = args.y, .codes = args.codes});
  }
  // Route, sort, gate, up, silu, down. `shared` of what it returns is empty.
  virtual ExpertRows Experts(const ExpertsArgs& args) = 0;
  // y = what the experts' rows come to: [num_tokens, hidden] of activation().
  virtual void Combine(const ExpertRows& rows, TensorView y) = 0;
  virtual void PickRows(const PickRowsArgs& args) = 0;
  virtual void CopyRows(const CopyRowsArgs& args) = 0;
  // Of several ranks each has written its share of the columns of `whole`, [num_rows, width], cut by
  // `unit`; afterwards all have all. One rank has all.
  virtual void Gather(TensorView /*whole*/, int64_t /*unit*/) {}

  // From Fork to Join, ops of what Fork returns may run beside those of this one: neither writes what
  // the other touches. That changes no bit.
  virtual Ops& Fork() { return *this; }
  virtual void Join() {}

  // What was computed since the last mark is of `part`.
  virtual void Mark(ForwardPart) {}
};

}  // namespace quire

#endif  // QUIRE_KERNELS_OPS_H_
