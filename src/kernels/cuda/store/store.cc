#include "kernels/cuda/store/store.h"

#include <cmath>

#include "base/error.h"

namespace quire::cuda {
namespace {

void RequireRowViews(const KvStore& store, int64_t num_tokens, const ConstTensorView& latent,
                     const ConstTensorView& rope) {
  const KvDims dims = store.layout().dims();
  RequireShape("latent", latent, {num_tokens, dims.latent_dim});
  if (dims.rope_dim > 0) {
    RequireShape("rope", rope, {num_tokens, dims.rope_dim});
  } else {
    Require(rope.empty(), "rope: expected none (rope_dim 0), got {} dimensions", rope.rank());
  }
}

void RequireTable(const char* name, const ConstTensorView& table, int64_t num_positions,
                  int32_t num_pairs) {
  RequireShape(name, table, {num_positions, num_pairs});
  Require(table.dtype() == DType::kF32, "{}: expected f32, got {}", name, DTypeName(table.dtype()));
}

}  // namespace

void ValidateShapes(const StoreWriteArgs& args) {
  RequireRowViews(args.store, static_cast<int64_t>(args.slots.size()), args.latent, args.rope);
}

void ValidateShapes(const StoreGatherArgs& args) {
  RequireRowViews(args.store, static_cast<int64_t>(args.slots.size()), args.latent, args.rope);
}

void ValidateShapes(const StoreMoveArgs& args) {
  Require(args.from.size() == args.to.size(), "move: {} source slots but {} targets",
          args.from.size(), args.to.size());
  const ByteOffset need =
      StoreMoveWorkspace(args.store.layout(), static_cast<int64_t>(args.from.size()));
  Require(ByteOffset(args.workspace.size()) >= need,
          "move.workspace: expected {} bytes ({} rows of {}), got {}", need, args.from.size(),
          args.store.layout().packed_row_bytes(), args.workspace.size());
}

void Validate(const RopeStoreArgs& args) {
  const KvLayout& layout = args.store.layout();
  const KvDims dims = layout.dims();
  const int64_t num_tokens = static_cast<int64_t>(args.slots.size());
  Require(!layout.is_index_key(), "rope store: expected a latent format, got {}",
          KvFormatName(layout.format()));
  Require(args.positions.size() == args.slots.size(),
          "positions: expected {} (one per slot), got {}", args.slots.size(),
          args.positions.size());
  RequireShape("kv", args.kv, {num_tokens, dims.values()});
  Require(args.norm_weight.size() == static_cast<size_t>(dims.latent_dim),
          "norm_weight: expected {} values, got {}", dims.latent_dim, args.norm_weight.size());
  Require(std::isfinite(args.eps) && args.eps >= 0, "eps: expected a finite number >= 0, got {}",
          args.eps);
  if (dims.rope_dim == 0) return;
  Require(dims.rope_dim % 2 == 0, "rope_dim: expected an even number, got {}", dims.rope_dim);
  RequireTable("cos", args.cos, args.cos.dim(0), dims.rope_dim / 2);
  RequireTable("sin", args.sin, args.cos.dim(0), dims.rope_dim / 2);
}

void Validate(const WriteIndexKeysArgs& args) {
  const KvLayout& layout = args.store.layout();
  const int64_t num_tokens = static_cast<int64_t>(args.slots.size());
  const int64_t dim = layout.dims().latent_dim;
  Require(layout.is_index_key(), "index keys: expected a format of index keys, got {}",
          KvFormatName(layout.format()));
  RequireShape("key", args.key, {num_tokens, dim});
  Require(args.key.dtype() == DType::kF32, "key: expected f32, got {}",
          DTypeName(args.key.dtype()));
  for (const std::span<const float> values : {args.norm_weight, args.norm_bias}) {
    Require(std::ssize(values) == dim, "norm of index keys: expected {} values, got {}", dim,
            values.size());
  }
  Require(std::isfinite(args.eps) && args.eps >= 0, "eps: expected a finite number >= 0, got {}",
          args.eps);
  const int64_t num_pairs = args.angles.cos.dim(1);
  Require(2 * num_pairs <= dim, "cos: expected at most {} pairs of {} values, got {}", dim / 2, dim,
          num_pairs);
  RequireTable("cos", args.angles.cos, num_tokens, static_cast<int32_t>(num_pairs));
  RequireTable("sin", args.angles.sin, num_tokens, static_cast<int32_t>(num_pairs));
}

}  // namespace quire::cuda
