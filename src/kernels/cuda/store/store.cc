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

}  // namespace quire::cuda
