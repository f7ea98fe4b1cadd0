// The forward pass of an EAGLE-3 head, over the ops of any backend.
//
// As the draft layer of model/draft.h, row p takes the token at p + 1 and a state of p, is rotated by p
// and kept in the slot of p:
//   the trunk's state of p = fuse([its residual stream before three layers, each normed or not])
//   x = state; attention reads [norm(embedding of token p + 1) | norm(state)] and adds to x, then an MLP
//   the head's own state = x, before or after its norm; logits = head(norm(x)), of its own vocabulary
#ifndef QUIRE_MODEL_EAGLE_H_
#define QUIRE_MODEL_EAGLE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/ops.h"
#include "kernels/weight.h"
#include "model/draft.h"
#include "model/eagle_config.h"
#include "model/forward.h"
#include "model/rope_table.h"
#include "model/weight_source.h"
#include "model/weights.h"

namespace quire {

// A head's folder, of which nothing has been read but the config and the headers of the weight files.
struct OpenedHead {
  std::unique_ptr<const EagleConfig> config;  // on its own, because the weights refer to it
  std::unique_ptr<WeightSource> weights;
};

// Throws Error(kInvalidArgument) if the folder or a file is missing or cannot be right, or the head is not
// `trunk`'s.
OpenedHead OpenEagleHead(const std::filesystem::path& folder, const ModelConfig& trunk);

// The trunk's states, of what ForwardArgs::layer_inputs holds.
struct FuseArgs {
  ConstTensorView inputs = {};  // [num_rows, layers * hidden] act
  TensorView normed = {};       // as inputs: scratch; may be empty where inputs are not normed
  TensorView states = {};       // [num_rows, hidden] act
};

class EagleHead {
 public:
  // `weights`, with an embedding, and `rope`, of config.layer, view memory that outlives the head.
  EagleHead(EagleConfig config, EagleWeights weights, RopeAngles rope);

  const EagleConfig& config() const { return config_; }
  // [draft vocabulary]: which of the trunk's tokens each of the head's is. In the host's memory.
  std::span<const int32_t> token_ids() const { return weights_.token_ids; }

  void Fuse(const FuseArgs& args, Ops& ops) const;

  // The layer's output is in args.rows.buffers.hidden; buffers are of config().layer, and rows.stores is
  // one of its geometry.
  void Forward(const DraftArgs& args, Ops& ops) const;

  // args.logits are of the draft vocabulary. `states` [num_rows, hidden] act: what rows behind take; it may
  // be args.normed.
  void Logits(const LogitsArgs& args, TensorView states, Ops& ops) const;

 private:
  EagleConfig config_;
  EagleWeights weights_;
  RopeAngles rope_;
  float softmax_scale_;
};

// The head of a folder, packed, with the trunk's `embedding` where it has none of its own. `packer` has
// finished when it returns.
EagleHead LoadEagleHead(const OpenedHead& head, const Weight& embedding, TokenCount context,
                        WeightPacker& packer);

}  // namespace quire

#endif  // QUIRE_MODEL_EAGLE_H_
