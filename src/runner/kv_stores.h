// The KV memory of a runner, and what a bucket's steps can hold of it.
#ifndef QUIRE_RUNNER_KV_STORES_H_
#define QUIRE_RUNNER_KV_STORES_H_

#include <vector>

#include "attn/capacity.h"
#include "attn/kv_store.h"
#include "device/arena.h"
#include "model/config.h"
#include "runner/bucket.h"
#include "runner/runner_options.h"
#include "step/step.h"

namespace quire {

// What index keys of this model are stored as. Throws Error(kInvalidArgument) for a layout that the type
// or the page size cannot have.
KvFormat IndexKeyFormat(const ModelConfig& config, const RunnerOptions& options);

// The layouts of a model's stores: of every layer, and behind them of each layer that has index keys:
// NumTrunkStores. Then those of the draft layer, in the same order, where the model drafts; or that of an
// EAGLE-3 head, whose rows have a geometry of their own.
std::vector<KvLayout> StoreLayouts(const ModelConfig& config, const RunnerOptions& options);

// Sizes, or takes, the KV stores of all layers, in that order.
std::vector<KvStore> LayOutStores(const ModelConfig& config, const RunnerLimits& limits,
                                  const RunnerOptions& options, Carver& carver);

StepCapacity CapacityOfBucket(const BucketSize& size, const RunnerLimits& limits);

}  // namespace quire

#endif  // QUIRE_RUNNER_KV_STORES_H_
