// The part of a model that one of several ranks has.
#ifndef QUIRE_MODEL_SHARD_H_
#define QUIRE_MODEL_SHARD_H_

#include <cstdint>

#include "model/config.h"

namespace quire {

// The part of the model that rank `rank` of `tp_size` has, with experts cut by their width (`ep_size` 1)
// or shared out whole (`ep_size` = `tp_size`). Throws Error(kInvalidArgument), with the sizes that would
// work, if heads or experts do not come out even, or something has too few columns for so many ranks.
ModelConfig WithShard(ModelConfig config, int32_t rank, int32_t tp_size, int32_t ep_size);

// The part that rank `rank` of `dp_size` has where each has tokens of its own: all of the model but for its
// experts, which are shared out whole. Throws Error(kInvalidArgument), with the sizes that would work, if
// these do not come out even.
ModelConfig WithOwnTokens(ModelConfig config, int32_t rank, int32_t dp_size);

}  // namespace quire

#endif  // QUIRE_MODEL_SHARD_H_
