// A layer's router in one launch: its product with the rows of tokens, the choice of experts, and the sort.
//
// What waits for the experts' offsets, all experts' weights, is most of a layer, so this is about latency. CTAs
// multiply 16 rows with 16 experts over a part of the inputs; who comes last of those that have a row's logits
// chooses for it; who comes last of these sorts. Nobody waits for another. Weights are on their way before the
// kernel takes its turn.
//
// A logit is summed in f32, in an order that the numbers of inputs and experts fix: parts of kRouterPart inputs, 64 for
// each of 16 warps, which tensor cores add up; warps ascending, then parts ascending. Or in the order of the tile kernel
// (kernels/cuda/gemm/gemm_tile.h), whose ranges are the parts then: a warp goes on from the sums of the one before.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTER_H_
#define QUIRE_KERNELS_CUDA_MOE_ROUTER_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/row_ops.h"

namespace quire::cuda {

inline constexpr int64_t kMaxRouterTokens = 256;
inline constexpr int kRouterTile = 16;    // tokens, and experts, of a CTA
inline constexpr int kRouterPart = 1024;  // inputs of a CTA
inline constexpr int kRouterWarpInputs = 64;

enum class RouterOrder {
  kOwn,
  kTiles,  // a logit has the bits of Gemm
};
inline constexpr RouterOrder kRouterOrders[] = {RouterOrder::kOwn, RouterOrder::kTiles};

// How a logit's inputs are cut into sums, which are added where it is read.
struct RouterCut {
  int32_t parts = 0;
  int32_t part_inputs = 0;  // of all but the last; whole warps'
  int32_t parts_of_cta = 1;

  int32_t ctas() const { return (parts + parts_of_cta - 1) / parts_of_cta; }  // of a tile
};
RouterCut RouterCutOf(int64_t num_experts, int64_t inputs, RouterOrder order);

struct RouterArgs {
  ConstTensorView x = {};  // [num_tokens, inputs] bf16
  WeightView w = {};       // [num_experts, inputs]
  RouteArgs route = {};    // of its logits only the shape counts
  SortByExpertArgs sort = {};
  std::span<float> logits = {};  // RouterWorkspace(num_tokens, num_experts, inputs, order)
  // kRouterCounts zeros, and zeros again behind the launch; no two launches that may run at once share them.
  std::span<int32_t> arrived = {};
  RouterOrder order = RouterOrder::kOwn;
};

// How many CTAs have arrived: those that have chosen, and for each tile of tokens those that have logits.
inline constexpr int64_t kRouterCounts = 1 + kMaxRouterTokens / kRouterTile;

// How many floats the parts of the logits are.
int64_t RouterWorkspace(int64_t num_tokens, int64_t num_experts, int64_t inputs,
                        RouterOrder order = RouterOrder::kOwn);

// Whether RouteTokens takes them: 1..kMaxRouterTokens tokens, up to kMaxExpertsRouted experts, a bf16 matrix, every row
// of x and w in whole groups of eight on a multiple of 16 bytes; in the order of tiles a whole matrix, whose ranges a CTA
// has room for (up to 8192 inputs).
bool RouterTakes(const ConstTensorView& x, const WeightView& w,
                 RouterOrder order = RouterOrder::kOwn);

// Whether it is the faster way. Of up to 8 tokens a product of one output a warp and one CTA that routes are, and more
// CTAs than there are multiprocessors take turns.
bool RouterPays(int64_t num_tokens, int64_t num_experts, int64_t inputs,
                RouterOrder order = RouterOrder::kOwn);

// The most tokens, up to num_tokens, of which it is; 0 where it never is.
int64_t MostRouterTokens(int64_t num_tokens, int64_t num_experts, int64_t inputs,
                         RouterOrder order = RouterOrder::kOwn);

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const RouterArgs& args);

// The product, Route and SortByExpert. Its launch overlaps with the kernel before it in every stream.
void RouteTokens(const RouterArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTER_H_
