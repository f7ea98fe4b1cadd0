#include "kernels/store.h"

#include "base/error.h"

namespace quire {
namespace {

// The two views of a row that write and gather share.
void RequireRowViews(const KvStore& store, std::span<const Slot> slots,
                     const ConstTensorView& latent, const ConstTensorView& rope) {
  const KvDims dims = store.layout().dims();
  const int64_t num_tokens = static_cast<int64_t>(slots.size());
  RequireShape("latent", latent, {num_tokens, dims.latent_dim});
  if (dims.rope_dim > 0) {
    RequireShape("rope", rope, {num_tokens, dims.rope_dim});
  } else {
    Require(rope.empty(), "rope: expected none (rope_dim 0), got {} dimensions", rope.rank());
  }
  store.RequireInPool("slots", slots);
}

}  // namespace

ByteOffset StoreMoveWorkspace(const KvLayout& layout, int64_t num_rows) {
  return ByteOffset(layout.packed_row_bytes()) * num_rows;
}

void Validate(const StoreWriteArgs& args) {
  RequireRowViews(args.store, args.slots, args.latent, args.rope);
}

void Validate(const StoreGatherArgs& args) {
  RequireRowViews(args.store, args.slots, args.latent, args.rope);
}

void Validate(const StoreMoveArgs& args) {
  Require(args.from.size() == args.to.size(), "move: {} source slots but {} targets",
          args.from.size(), args.to.size());
  args.store.RequireInPool("from", args.from);
  args.store.RequireInPool("to", args.to);
  const ByteOffset need =
      StoreMoveWorkspace(args.store.layout(), static_cast<int64_t>(args.from.size()));
  Require(ByteOffset(args.workspace.size()) >= need,
          "move.workspace: expected {} bytes ({} rows of {}), got {}", need, args.from.size(),
          args.store.layout().packed_row_bytes(), args.workspace.size());
}

}  // namespace quire
