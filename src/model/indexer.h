// The indexer of sparse attention, over the ops of any backend: writes a layer's index keys, and chooses
// the keys that its queries attend to. docs/numerics.md has the formulas.
#ifndef QUIRE_MODEL_INDEXER_H_
#define QUIRE_MODEL_INDEXER_H_

#include <cstdint>
#include <span>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "attn/plan.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "kernels/ops.h"
#include "kernels/select_keys.h"
#include "model/config.h"
#include "model/weights.h"

namespace quire {

// How the config's indexer looks to its kernel; num_heads is 0 where there is none.
IndexShape IndexShapeOf(const ModelConfig& config);

// What indexers write in a step; empty where the model has none. `act` is the ops' activation().
struct IndexerBuffers {
  TensorView q = {};      // [tokens, heads * dim] act
  TensorView key = {};    // [tokens, dim] f32
  TensorView gates = {};  // [tokens, heads] f32
  // [tokens, top_k]: the choice of the last layer that chose, for the layers that share it.
  std::span<int32_t> chosen = {};
};
IndexerBuffers LayOutIndexer(const ModelConfig& config, const StepCapacity& capacity,
                             DType activation, Carver& carver);

// What all layers' indexers share in a step. Views are of this step's tokens alone.
struct IndexerStep {
  IndexShape shape = {};
  const Plan& plan;
  std::span<const Slot> slots = {};
  StepAngles angles = {};  // the attention's own, in the indexer's pairs
  TensorView q = {};       // [num_tokens, heads * dim]
  TensorView key = {};
  TensorView gates = {};
  std::span<int32_t> chosen = {};
};

// The step's views; `angles` are the attention's.
IndexerStep MakeIndexerStep(const ModelConfig& config, const Plan& plan,
                            std::span<const Slot> slots, const StepAngles& angles,
                            const IndexerBuffers& buffers);

// The tokens' own index keys, to the store. `normed` is the layer's normed input.
void WriteIndexKeys(const IndexerStep& step, const IndexerWeights& weights, const KvStore& store,
                    const ProductInput& normed, Ops& ops);

// Queries and gates of the step's first tokens, of which `normed` is the layer's normed input and `q_down`
// its normed query latent.
void MakeIndexQueries(const IndexerStep& step, const IndexerWeights& weights,
                      const ProductInput& normed, const ProductInput& q_down, Ops& ops);

// Leaves the choice in step.chosen. The keys are written, the queries made.
void ChooseKeys(const IndexerStep& step, const KvStore& store, Ops& ops);

}  // namespace quire

#endif  // QUIRE_MODEL_INDEXER_H_
