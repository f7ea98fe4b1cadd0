// Trees that grow on the device (decode/tree_growth.h). Each launches one kernel and returns; lists are of
// device memory, and their lengths the grids.
#ifndef QUIRE_DECODE_CUDA_TREE_GROWTH_H_
#define QUIRE_DECODE_CUDA_TREE_GROWTH_H_

#include <cstdint>
#include <span>

#include "attn/step_pack.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "decode/sample_items.h"
#include "decode/tree_growth.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

// The most likely tokens of a pass' rows.
struct RowTops {
  const TokenLogprob* tokens = nullptr;
  int32_t stride = 0;  // of rows
  // Which of the model's tokens each of these is; empty: they are the model's own.
  std::span<const int32_t> token_ids = {};
};

// States and tokens of the last pass to their places. No state is read that is written.
struct KeepDraftsArgs {
  TreeGrowths growths = {};
  std::span<const KeptDraft> kept = {};
  RowTops tops = {};
  TensorView states = {};  // [any, hidden]
};
void KeepDrafts(const KeepDraftsArgs& args, const Stream& stream);

// The best candidates of each draft's last level as rows of the pass, over their placeholders.
struct GrowRowsArgs {
  TreeGrowths growths = {};
  std::span<const GrowingRows> rows = {};
  int32_t branches = 1;
  bool forgets_parents = false;  // a fault: rows hang on the committed tokens alone
  std::span<int32_t> tokens = {};
  std::span<int32_t> state_of = {};
  PackedStep packed = {};
};
void GrowRows(const GrowRowsArgs& args, const Stream& stream);

// What the pass said as the candidates of one level more.
struct TakeLevelArgs {
  TreeGrowths growths = {};
  std::span<const GrowingRows> rows = {};
  int32_t branches = 1;
  RowTops tops = {};
};
void TakeLevel(const TakeLevelArgs& args, const Stream& stream);

// The best candidates of all levels as the nodes of each tree: rows of a step and what is drawn of them,
// over their placeholders, and the trees themselves.
struct PlaceTreesArgs {
  TreeGrowths growths = {};
  std::span<const GrownTree> trees = {};
  std::span<int32_t> tokens = {};
  std::span<TokenCount> positions = {};
  PackedStep packed = {};
  SampleInputs sampling = {};
  TreeNodes nodes = {};
};
void PlaceTrees(const PlaceTreesArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_DECODE_CUDA_TREE_GROWTH_H_
