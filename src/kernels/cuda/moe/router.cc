#include "kernels/cuda/moe/router.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {
namespace {

constexpr int64_t kGroupInputs = 8;  // 16 bytes
constexpr int64_t kMostTokensByGemv = 8;

}  // namespace

RouterCut RouterCutOf(int64_t num_experts, int64_t inputs, RouterOrder order) {
  if (order == RouterOrder::kOwn) {
    return {.parts = static_cast<int32_t>(CeilDiv(inputs, int64_t{kRouterPart})),
            .part_inputs = kRouterPart};
  }
  RouterCut cut;
  cut.parts = GemmSplits(num_experts, inputs, TileMath::kBf16);
  cut.part_inputs = static_cast<int32_t>(GemmSplitInputs(inputs, cut.parts, TileMath::kBf16));
  cut.parts_of_cta = std::max(1, kRouterPart / std::max(1, cut.part_inputs));
  return cut;
}

int64_t RouterWorkspace(int64_t num_tokens, int64_t num_experts, int64_t inputs,
                        RouterOrder order) {
  return RouterCutOf(num_experts, inputs, order).parts * num_tokens * num_experts;
}

int64_t MostRouterTokens(int64_t num_tokens, int64_t num_experts, int64_t inputs,
                         RouterOrder order) {
  const int64_t tile_ctas =
      CeilDiv(num_experts, int64_t{kRouterTile}) * RouterCutOf(num_experts, inputs, order).ctas();
  if (tile_ctas == 0) return 0;  // no experts
  const int64_t most =
      std::min({num_tokens, kMaxRouterTokens, kMultiprocessors / tile_ctas * kRouterTile});
  return most > kMostTokensByGemv ? most : 0;
}

bool RouterPays(int64_t num_tokens, int64_t num_experts, int64_t inputs, RouterOrder order) {
  return num_tokens > 0 && MostRouterTokens(num_tokens, num_experts, inputs, order) == num_tokens;
}

bool RouterTakes(const ConstTensorView& x, const WeightView& w, RouterOrder order) {
  if (order == RouterOrder::kTiles &&
      (w.whole_outputs > w.shape.outputs ||
       RouterCutOf(w.shape.outputs, w.shape.inputs, order).part_inputs > kRouterPart)) {
    return false;
  }
  return x.dim(0) >= 1 && x.dim(0) <= kMaxRouterTokens && w.shape.outputs <= kMaxExpertsRouted &&
         w.format == WeightFormat::kBf16 && w.count == 1 && w.shape.inputs % kGroupInputs == 0 &&
         InWholeGroups(FirstByte(x), 2 * x.stride(0)) && InWholeGroups(w.data, 2 * w.row_stride);
}

void Validate(const RouterArgs& args) {
  Validate(args.route, args.sort);
  RequireWeights("router.w", args.w);
  RequireX(args.x, {}, args.route.logits.dim(0), args.w);
  Require(args.w.shape.outputs == args.route.shape.num_experts,
          "router.w: expected {} experts, got {}", args.route.shape.num_experts,
          args.w.shape.outputs);
  Require(RouterTakes(args.x, args.w, args.order),
          "router: expected 1..{} aligned rows and 1..{} experts of a bf16 matrix, got {} and {}",
          kMaxRouterTokens, kMaxExpertsRouted, args.x.dim(0), args.w.shape.outputs);
  const int64_t needed =
      RouterWorkspace(args.x.dim(0), args.w.shape.outputs, args.w.shape.inputs, args.order);
  Require(std::ssize(args.logits) >= needed, "router.logits: expected {} values or more, got {}",
          needed, args.logits.size());
  Require(std::ssize(args.arrived) == kRouterCounts, "router.arrived: expected {} values, got {}",
          kRouterCounts, args.arrived.size());
}

}  // namespace quire::cuda
