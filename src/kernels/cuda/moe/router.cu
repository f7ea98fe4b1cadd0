#include "kernels/cuda/moe/router.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/moe/route_sort.cuh"
#include "kernels/cuda/moe/route_token.cuh"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {
namespace {

constexpr int kTile = kRouterTile;
constexpr int kWarps = kTile;  // a warp chooses for a token
constexpr int kThreads = kWarps * 32;
static_assert(kThreads >= kMaxExpertsRouted);

struct RouterParams {
  RouteShape shape;
  ExpertGroups groups;
  Rows<const Bf16> x, w;
  int32_t num_tokens, inputs;
  RouterCut cut;
  float* logits;      // [parts, num_tokens, num_experts]
  int32_t* arrived;   // [0]: tiles of tokens; [1 + tile]: CTAs that have stored logits of the tile
  const float* bias;  // or null
  float* weights;     // [num_tokens, top_k]
  int32_t* experts;   // likewise; those of `choices`
  Choices choices;
  int32_t *offsets, *row_of, *token_of, *used;
};

// ---- Product ----

constexpr int kBlocks = kRouterWarpInputs / 32;  // of 32 inputs, that a warp has
static_assert(kWarps * kRouterWarpInputs == kRouterPart);

// How rows come: weights where it is said, those of tokens when the compiler likes.
struct LoadWeights {
  static __device__ uint4 Of16(const Bf16* from) {
    return LoadHere16(reinterpret_cast<const std::byte*>(from));
  }
  static __device__ uint2 Of8(const Bf16* from) {
    return LoadHere8(reinterpret_cast<const std::byte*>(from));
  }
};
struct LoadTokens {
  static __device__ uint4 Of16(const Bf16* from) { return *reinterpret_cast<const uint4*>(from); }
  static __device__ uint2 Of8(const Bf16* from) { return *reinterpret_cast<const uint2*>(from); }
};

// 16 rows of the product and a warp's inputs of them, as registers: a lane has rows lane / 4 and 8 more, and of each
// block of 32 inputs those from 8 (lane % 4) on. Tensor cores are told that these are others, of both operands
// alike: which inputs are added first is all that this changes. In the order of tiles 16 inputs that follow each other
// are added at once: there a lane has those from 4 (lane % 4) on of the block's first 16, and of its others.
template <RouterOrder kOrder>
struct Operand {
  uint4 chunks[2][kBlocks];

  // Rows from `first` on, the last one for those past it, and inputs from `begin` on, 0 past the last.
  template <class Load>
  __device__ Operand(Rows<const Bf16> rows, int first, int num_rows, int begin, int inputs, Load) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* const row = rows[min(first + 8 * half + LaneId() / 4, num_rows - 1)];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        uint4& chunk = chunks[half][b];
        chunk = make_uint4(0, 0, 0, 0);
        if constexpr (kOrder == RouterOrder::kOwn) {
          const int k = begin + 32 * b + 8 * (LaneId() % 4);
          if (k < inputs) chunk = Load::Of16(row + k);
        } else {
          const int k = begin + 32 * b + 4 * (LaneId() % 4);
          uint2 low = make_uint2(0, 0), high = low;
          if (k < inputs) low = Load::Of8(row + k);
          if (k + 16 < inputs) high = Load::Of8(row + k + 16);
          chunk = make_uint4(low.x, low.y, high.x, high.y);
        }
      }
    }
  }
  // Two inputs of a row, of the four pairs that the lane has of each block.
  __device__ uint32_t Pair(int half, int block, int pair) const {
    const uint4& chunk = chunks[half][block];
    return pair == 0 ? chunk.x : pair == 1 ? chunk.y : pair == 2 ? chunk.z : chunk.w;
  }
};

// sums[half] += those of 16 experts and tokens 8 half to 8 half + 7, as MultiplyBf16 has them.
template <RouterOrder kOrder>
__device__ void MultiplyOperands(const Operand<kOrder>& w, const Operand<kOrder>& x,
                                 float (&sums)[2][4]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      const uint32_t a[4] = {w.Pair(0, b, pair), w.Pair(1, b, pair), w.Pair(0, b, pair + 1),
                             w.Pair(1, b, pair + 1)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        MultiplyBf16(sums[half], a, x.Pair(half, b, pair), x.Pair(half, b, pair + 1));
      }
    }
  }
}

// Sums of every warp, [warp][expert][token]. Rows are padded so that the lanes that add them up read 32 banks.
constexpr int kSumStride = kTile + 2;
constexpr int kWarpSums = kTile * kSumStride;
constexpr int kSumBytes = kWarps * kWarpSums * static_cast<int>(sizeof(float));

__device__ void StoreSums(const float (&sums)[2][4], float* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int more = 0; more < 2; ++more) {
      const int expert = LaneId() / 4 + 8 * more, token = 8 * half + 2 * (LaneId() % 4);
      *reinterpret_cast<float2*>(to + expert * kSumStride + token) =
          make_float2(sums[half][2 * more], sums[half][2 * more + 1]);
    }
  }
}

// A tile of experts and tokens.
struct LogitTile {
  int first_expert, first_token;

  // Of `part` of the inputs, the sum at `place` of the tile.
  __device__ void Store(const RouterParams& p, int part, int place, float sum) const {
    const int expert = first_expert + place % kTile, token = first_token + place / kTile;
    if (expert >= p.shape.num_experts || token >= p.num_tokens) return;
    const int64_t row = int64_t{part} * p.num_tokens + token;
    p.logits[row * p.shape.num_experts + expert] = sum;
  }
};
__device__ const float* SumAt(const float* sums, int place) {
  return sums + place % kTile * kSumStride + place / kTile;
}

// The warps' sums, ascending, to the logits of this part of the inputs.
__device__ void AddSums(const RouterParams& p, const float* sums, int part, const LogitTile& tile) {
  const int place = static_cast<int>(threadIdx.x);
  if (place >= kTile * kTile) return;
  const float* const mine = SumAt(sums, place);
  float sum = mine[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, mine[w * kWarpSums]);
  tile.Store(p, part, place, sum);
}

// Which part of the inputs a warp has some of, in the order of tiles, and where in the chain of the part's warps.
struct ChainPlace {
  int length, number, part, position;

  __device__ ChainPlace(const RouterParams& p, int cta, int warp)
      : length(p.cut.part_inputs / kRouterWarpInputs),
        number(warp / length),  // of the CTA's
        part(cta * p.cut.parts_of_cta + number),
        position(warp % length) {}

  __device__ bool IsThere(const RouterParams& p) const {
    return number < p.cut.parts_of_cta && part < p.cut.parts;
  }
  // A warp without a part begins behind the last input.
  __device__ int Begin(const RouterParams& p) const {
    return IsThere(p) ? part * p.cut.part_inputs + position * kRouterWarpInputs : p.inputs;
  }
};

// The tile kernel adds all inputs of a range to one sum, so the warps of a part follow each other, each from the sums of
// the one before, by way of `handed`, the part's own; the last one leaves the part's sums there. Called by all threads.
__device__ void MultiplyInTurn(const RouterParams& p, const ChainPlace& at,
                               const Operand<RouterOrder::kTiles>& w,
                               const Operand<RouterOrder::kTiles>& x, float* handed) {
  float4* const mine = reinterpret_cast<float4*>(handed) + LaneId();
  float sums[2][4] = {};
#pragma unroll 1
  for (int turn = 0; turn < at.length; ++turn) {
    if (turn == at.position && at.IsThere(p)) {
      if (turn > 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 before = mine[32 * half];
          sums[half][0] = before.x;
          sums[half][1] = before.y;
          sums[half][2] = before.z;
          sums[half][3] = before.w;
        }
      }
      MultiplyOperands(w, x, sums);
      if (turn + 1 < at.length) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mine[32 * half] = make_float4(sums[half][0], sums[half][1], sums[half][2], sums[half][3]);
        }
      } else {
        __syncwarp();  // all lanes have read what was handed to them
        StoreSums(sums, handed);
      }
    }
    __syncthreads();  // the next warp's sums are there, or the part's
  }
}

// Stores the sums that the chains have left.
__device__ void StoreParts(const RouterParams& p, const float* sums, int first_part,
                           const LogitTile& tile) {
  const int parts = min(p.cut.parts_of_cta, p.cut.parts - first_part);
  for (int i = static_cast<int>(threadIdx.x); i < parts * kTile * kTile; i += kThreads) {
    const int number = i / (kTile * kTile), place = i % (kTile * kTile);
    tile.Store(p, first_part + number, place, *SumAt(sums + number * kWarpSums, place));
  }
}

// ---- Choice ----

// Whether this CTA is the last of `count` that arrive; then all that they have stored is there for its threads. The
// count is 0 again behind the last. Called by all threads.
__device__ bool IsLast(int32_t& arrived, int32_t count) {
  __shared__ bool is_last;
  __syncthreads();  // all threads have stored, and have read what was here before
  if (count == 1) return true;
  if (threadIdx.x == 0) {
    // What all threads stored is before it, and what others stored is before what is loaded next.
    is_last = ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device>(arrived).fetch_add(
                  1, ::cuda::memory_order_acq_rel) == count - 1;
    if (is_last) arrived = 0;
  }
  __syncthreads();
  return is_last;
}

// A token's logits, whose parts are to be added, ascending.
struct PartLogits {
  const float* first;
  int64_t step;  // to the next part's
  int32_t count;

  // As that of WholeRow.
  template <int kSlots>
  __device__ void Load(int n, float missing, float (&mine)[kSlots]) const {
    WholeRow{first}.Load(n, missing, mine);
    const float* part = first + LaneId();
#pragma unroll 3  // three parts are under way at once
    for (int i = 1; i < count; ++i) {
      part += step;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        if (LaneId() < n - 32 * s) mine[s] = __fadd_rn(mine[s], part[32 * s]);
      }
    }
  }
};

// For this warp's token of a tile. `scores` are [kWarps, kTokenScores].
template <int kSlots>
__device__ void ChooseForTile(const RouterParams& p, int tile, int num_choices, float* scores) {
  const int n = p.shape.num_experts, warp = WarpId();
  const int token = tile * kTile + warp, choice = token * p.shape.top_k;
  if (choice >= num_choices) return;
  const PartLogits logits = {.first = p.logits + int64_t{token} * n,
                             .step = int64_t{p.num_tokens} * n,
                             .count = p.cut.parts};
  RouteToken<kSlots>(p.shape, p.groups, logits, LateBias{p.bias},
                     scores + warp * kTokenScores<kSlots>, [&](int j, int expert, float weight) {
                       p.experts[choice + j] = expert;
                       p.weights[choice + j] = weight;
                     });
}

// ---- Kernel ----

// Shared memory is the warps' sums, then scores, then counts: never two of them at once.
template <int kSlots>
inline constexpr int kSharedBytes =
    std::max(kSumBytes, kWarps* kTokenScores<kSlots>* static_cast<int>(sizeof(float)));

// A CTA for each (part of the inputs, or some of them; tile of experts), of each tile of tokens. kSlots * 32 >= num_experts.
template <int kSlots, RouterOrder kOrder>
__global__ void __launch_bounds__(kThreads, 2) RouterKernel(const RouterParams p) {
  // The warps' sums, then scores, then counts.
  auto* const room = reinterpret_cast<float*>(LaunchedShared<16>());
  constexpr bool kInTurn = kOrder == RouterOrder::kTiles;
  const int warp = static_cast<int>(threadIdx.x) / 32, tile = static_cast<int>(blockIdx.y);
  const int tiles = CeilDiv(p.shape.num_experts, kTile);
  const int cta = static_cast<int>(blockIdx.x) / tiles;
  const LogitTile logits{.first_expert = static_cast<int>(blockIdx.x) % tiles * kTile,
                         .first_token = tile * kTile};
  int begin = cta * kRouterPart + warp * kRouterWarpInputs;
  if constexpr (kInTurn) begin = ChainPlace(p, cta, warp).Begin(p);
  const Operand<kOrder> w(p.w, logits.first_expert, p.shape.num_experts, begin, p.inputs,
                          LoadWeights());
  if (p.bias != nullptr && threadIdx.x * 32 < p.shape.num_experts) {
    PrefetchLine(reinterpret_cast<const std::byte*>(p.bias + threadIdx.x * 32));
  }
  TakeTurn();  // nobody writes weights, nor the bias
  const Operand<kOrder> x(p.x, logits.first_token, p.num_tokens, begin, p.inputs, LoadTokens());
  const auto num_choices = static_cast<int>(p.choices.Count());  // on its way beside x
  if constexpr (kInTurn) {
    const ChainPlace at(p, cta, warp);
    MultiplyInTurn(p, at, w, x, room + at.number * kWarpSums);
    StoreParts(p, room, cta * p.cut.parts_of_cta, logits);
  } else {
    float sums[2][4] = {};
    MultiplyOperands(w, x, sums);
    StoreSums(sums, room + warp * kWarpSums);
    __syncthreads();  // every warp's sums are there before one is added
    AddSums(p, room, cta, logits);
  }

  if (!IsLast(p.arrived[1 + tile], static_cast<int32_t>(gridDim.x))) return;
  ChooseForTile<kSlots>(p, tile, num_choices, room);
  if (!IsLast(p.arrived[0], static_cast<int32_t>(gridDim.y))) return;
  Choices choices = p.choices;
  choices.capacity = num_choices;
  choices.live = {};
  SortInCta<kWarps>(choices, reinterpret_cast<int32_t*>(room), p.offsets, p.row_of, p.token_of,
                    p.used);
}

template <int kSlots, RouterOrder kOrder>
void LaunchRouter(const RouterParams& p, const Stream& stream) {
  const auto kernel = RouterKernel<kSlots, kOrder>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kSharedBytes<kSlots>),
        "router: shared memory");
  const int ctas = p.cut.ctas() * CeilDiv(p.shape.num_experts, kTile);
  LaunchAhead("router", kernel,
              {.grid = dim3(static_cast<unsigned>(ctas),
                            static_cast<unsigned>(CeilDiv(p.num_tokens, kTile))),
               .block = kThreads,
               .shared_bytes = static_cast<size_t>(kSharedBytes<kSlots>),
               .overlaps = true},
              stream, p);
}

template <RouterOrder kOrder>
void LaunchInOrder(const RouterParams& p, const Stream& stream) {
  if (p.shape.num_experts <= 2 * 32) return LaunchRouter<2, kOrder>(p, stream);
  // In the order of tiles eight slots would spill, and twelve do not.
  if constexpr (kOrder == RouterOrder::kOwn) {
    if (p.shape.num_experts <= 8 * 32) return LaunchRouter<8, kOrder>(p, stream);
  }
  LaunchRouter<kMaxExpertsRouted / 32, kOrder>(p, stream);
}

}  // namespace

void RouteTokens(const RouterArgs& args, const Stream& stream) {
  Validate(args);
  const SortByExpertArgs& sort = args.sort;
  const RouterParams p = {
      .shape = args.route.shape,
      .groups = ExpertGroups(args.route.shape),
      .x = RowsOf<const Bf16>(args.x),
      .w = {.data = reinterpret_cast<const Bf16*>(args.w.data), .stride = args.w.row_stride},
      .num_tokens = static_cast<int32_t>(args.x.dim(0)),
      .inputs = static_cast<int32_t>(args.w.shape.inputs),
      .cut = RouterCutOf(args.w.shape.outputs, args.w.shape.inputs, args.order),
      .logits = args.logits.data(),
      .arrived = args.arrived.data(),
      .bias = args.route.bias.data(),
      .weights = args.route.weights.data(),
      .experts = args.route.experts.data(),
      .choices = {.experts = args.route.experts.data(),
                  .num_experts = sort.num_experts,
                  .top_k = sort.top_k,
                  .capacity = std::ssize(sort.experts),
                  .live = sort.live,
                  .status = sort.status},
      .offsets = sort.offsets.data(),
      .row_of = sort.row_of.data(),
      .token_of = sort.token_of.data(),
      .used = sort.used};
  if (args.order == RouterOrder::kTiles) return LaunchInOrder<RouterOrder::kTiles>(p, stream);
  LaunchInOrder<RouterOrder::kOwn>(p, stream);
}

}  // namespace quire::cuda
