// What the kernels of latent attention share: their arguments, which keys a pass reads, states in the
// workspace, and folding one state into another.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_WORK_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_WORK_CUH_

#include <cstddef>
#include <cstdint>

#include "attn/plan.h"
#include "attn/work.h"
#include "device/cuda/status.cuh"
#include "kernels/cuda/mla_attention/mla_attention_launch.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/store/paged_key.cuh"
#include "kernels/cuda/store/store_row.cuh"

namespace quire::cuda {

// A [tokens, heads, values] view, or [tokens, heads] with values of 1.
struct HeadsView {
  std::byte* data = nullptr;
  int64_t token_stride = 0;  // elements
  int64_t head_stride = 0;
  bool is_bf16 = false;

  template <class T>
  __device__ T* Row(int64_t token, int64_t head) const {
    return reinterpret_cast<T*>(data) + token * token_stride + head * head_stride;
  }
};

struct MlaKernelArgs {
  Plan plan;
  StoreView store;
  HeadsView q, out, lse;  // lse.data is null where none is wanted
  KeyLists lists;
  float scale;
  int32_t num_heads;
  int32_t tile_rows;   // of a full query tile: query_tile * num_heads
  int64_t num_tokens;  // that q and out hold
  float* folded;       // [num_workers] states: what a worker has of the tile at hand
  float* kept;         // [num_workers] states: rows that values are not to be added to
  float* partials;     // [max_partials] states
  int64_t max_partials;
  StatusWord status;
};

inline HeadsView HeadsOf(const ConstTensorView& view) {
  if (view.empty()) return {};
  const bool is_bf16 = view.dtype() == DType::kBf16;
  const void* data =
      is_bf16 ? static_cast<const void*>(view.Address<Bf16>()) : view.Address<float>();
  return {.data = static_cast<std::byte*>(const_cast<void*>(data)),
          .token_stride = view.stride(0),
          .head_stride = view.stride(1),
          .is_bf16 = is_bf16};
}

inline MlaKernelArgs KernelArgsOf(const MlaAttentionArgs& args, const KeyLists& lists,
                                  StatusWord status) {
  const int32_t num_heads = static_cast<int32_t>(args.q.dim(1));
  const int32_t tile_rows = static_cast<int32_t>(args.plan.work.query_tile.raw()) * num_heads;
  const int64_t floats = MlaStateFloats(tile_rows, args.store.layout().dims().latent_dim);
  const int64_t num_states = static_cast<int64_t>(args.workspace.size()) / 4 / floats;
  float* workspace = reinterpret_cast<float*>(args.workspace.data());
  return {.plan = args.plan,
          .store = ReadViewOf(args.store),
          .q = HeadsOf(args.q),
          .out = HeadsOf(args.out),
          .lse = HeadsOf(args.lse),
          .lists = lists,
          .scale = args.scale,
          .num_heads = num_heads,
          .tile_rows = tile_rows,
          .num_tokens = args.q.dim(0),
          .folded = workspace,
          .kept = workspace + floats * args.plan.work.num_workers,
          .partials = workspace + 2 * floats * args.plan.work.num_workers,
          .max_partials = num_states - 2 * args.plan.work.num_workers,
          .status = status};
}

// ---- States in the workspace ----

struct StateView {
  float* m;
  float* l;
  float* o;
  int64_t columns;

  // The sums that `lane` has of the patch at a row and column: rows lane / 4 and 8 below, of each the columns
  // from lane % 4 * 2 on.
  __device__ float4& Sums(int32_t row, int32_t column, int lane) const {
    const int64_t patch = (row / kPatchRows * columns + column / kPatchColumns * kPatchColumns);
    return reinterpret_cast<float4*>(o + patch * kPatchRows)[lane];
  }
  __device__ float& Sum(int32_t row, int32_t column) const {
    float* four = &Sums(row, column, row % 8 * 4 + column % 8 / 2).x;
    return four[row % 16 / 8 * 2 + column % 2];
  }
};

__device__ inline StateView StateAt(const MlaKernelArgs& args, float* states, int64_t index) {
  const int64_t latent_dim = args.store.dims.latent_dim;
  const int64_t rows = MlaStateRows(args.tile_rows);
  float* m = states + index * MlaStateFloats(args.tile_rows, latent_dim);
  return {.m = m, .l = m + rows, .o = m + 2 * rows, .columns = MlaStateColumns(latent_dim)};
}

// ---- exp and log of the two kernels ----

struct NaturalExponent {
  static __device__ float Exp(float x) { return expf(x); }
  static __device__ float LogSumExp(float m, float l) { return m + logf(l); }
};
// Exponents are at most 0 here.
struct Base2Exponent {
  static __device__ float Exp(float x) { return Exp2Approx(x); }
  static __device__ float LogSumExp(float m, float l) { return (m + log2f(l)) * 0x1.62e43p-1f; }
};

inline constexpr float kLog2E = 0x1.715476p0f;

// What a row's sums are multiplied with in the end: 1 / l, 0 where nothing was seen.
__device__ inline float ShareOfOne(float l) { return l == 0.0f ? 0.0f : __frcp_rn(l); }

// What to subtract before exp: the maximum, or 0 where nothing but -inf was seen.
__device__ inline float Anchor(float m) { return m == -INFINITY ? 0.0f : m; }

// Two states of a row become one: sums are earlier * a + later * b, with the products of `later`
// rounded first. The same operations wherever states are folded.
struct Fold {
  float m, l;
  float a, b;

  template <class Exponent>
  static __device__ Fold Of(float earlier_m, float earlier_l, float later_m, float later_l) {
    const float m = fmaxf(earlier_m, later_m);
    const float a = Exponent::Exp(earlier_m - Anchor(m));
    const float b = Exponent::Exp(later_m - Anchor(m));
    return {.m = m, .l = __fmaf_rn(a, earlier_l, __fmul_rn(b, later_l)), .a = a, .b = b};
  }
  __device__ float Sum(float earlier, float later) const {
    return __fmaf_rn(a, earlier, __fmul_rn(b, later));
  }
};

// ---- The rows of a piece that one CTA runs, and the keys they see ----

// One pass over up to 64 keys: of all rows, or of the rows of one token.
struct Pass {
  int32_t key;    // the first, a multiple of kKeyTile
  int32_t token;  // of the tile, or kAllTokens
};
inline constexpr int32_t kAllTokens = -1;
inline constexpr int32_t kTileKeys = static_cast<int32_t>(kKeyTile.raw());

// Plain data, so that a kernel whose registers are full can keep it in shared memory.
struct RowBlock {
  QueryTile tile;
  int32_t num_heads;
  int32_t row_begin;  // in the tile
  int32_t num_rows;
  int32_t own_keys_begin;  // from here on every query sums keys of its own, in its own order
  int32_t nodes_begin;     // of a tree whose nodes stay in their order: rows see some of them
  int32_t first_token, last_token;  // of the tile, that have rows here
  int32_t kv_end, kv_len;           // the last is the sequence's
  const PageId* pages;              // of the sequence

  static __device__ RowBlock Of(const MlaKernelArgs& args, const QueryTile& tile, int32_t row_begin,
                                int32_t max_rows) {
    const int32_t rows = tile.q_count * args.num_heads - row_begin;
    const int32_t num_rows = rows < max_rows ? rows : max_rows;
    const int32_t committed = static_cast<int32_t>(args.plan.committed[tile.seq].raw());
    // A list is of one query, and its own from the first key on.
    const bool has_own_keys = args.plan.IsTree(tile.seq) && args.lists.chosen == nullptr;
    return {.tile = tile,
            .num_heads = args.num_heads,
            .row_begin = row_begin,
            .num_rows = num_rows,
            // The first tile that holds uncommitted keys is, as a whole, one of each query's own.
            .own_keys_begin = has_own_keys ? committed / kTileKeys * kTileKeys : INT32_MAX,
            .nodes_begin = INT32_MAX,
            .first_token = row_begin / args.num_heads,
            .last_token = (row_begin + num_rows - 1) / args.num_heads,
            .kv_end = static_cast<int32_t>(tile.kv_end.raw()),
            .kv_len = static_cast<int32_t>(args.plan.kv_len[tile.seq].raw()),
            .pages = args.plan.Row(tile.seq)};
  }

  // A row of a tree has the bits of its path alone only where it sums the path's keys as if they followed each
  // other, so that each token has passes of its own. Where bits depend on the step anyway, rows go over all
  // nodes together, and leave out those that they do not see.
  __device__ void GoOverNodesTogether(const MlaKernelArgs& args) {
    if (own_keys_begin == INT32_MAX || args.plan.work.exact || args.plan.mask_words > 1) return;
    const int32_t committed = static_cast<int32_t>(args.plan.committed[tile.seq].raw());
    own_keys_begin = INT32_MAX;
    nodes_begin = committed;
    if (kv_end > committed) kv_end = kv_len;
  }
  __device__ bool HasNodesTogether() const { return nodes_begin != INT32_MAX; }
  // The nodes that a token of such a tree sees.
  __device__ uint64_t NodesOf(const MlaKernelArgs& args, int32_t token) const {
    return *args.plan.TreeMask(tile.q_begin + TokenCount(token));
  }

  __device__ int32_t TokenOf(int32_t row) const { return (row_begin + row) / num_heads; }
  __device__ int32_t HeadOf(int32_t row) const { return (row_begin + row) % num_heads; }
  // Never more than the tile's own end: the plan decides how far this tile reads.
  __device__ int32_t VisibleTo(const MlaKernelArgs& args, int32_t token) const {
    const TokenCount visible = args.plan.Visible(tile.seq, tile.q_begin + TokenCount(token));
    return static_cast<int32_t>(Min(tile.kv_end, visible).raw());
  }

  __device__ Pass PassAt(int32_t key) const {
    return {.key = key, .token = key < own_keys_begin ? kAllTokens : first_token};
  }
  __device__ Pass Next(Pass pass) const {
    if (pass.token == kAllTokens || pass.token == last_token) return PassAt(pass.key + kTileKeys);
    return {.key = pass.key, .token = pass.token + 1};
  }
  // Rows [first, end) take part in a pass.
  __device__ int32_t FirstRow(Pass pass) const {
    if (pass.token == kAllTokens) return 0;
    const int32_t row = pass.token * num_heads - row_begin;
    return row > 0 ? row : 0;
  }
  __device__ int32_t EndRow(Pass pass) const {
    if (pass.token == kAllTokens) return num_rows;
    const int32_t row = (pass.token + 1) * num_heads - row_begin;
    return row < num_rows ? row : num_rows;
  }

  // Where in the store key `pass.key + j` of the pass lies, or -1 at and past `limit`.
  __device__ int64_t SlotOf(const MlaKernelArgs& args, Pass pass, int32_t j, int32_t limit) const {
    return SlotOf(args, PageOf(args, ListedAt(args, pass, j, limit)));
  }

  // The same in three steps, each of which asks memory for what the next one needs. So nobody waits who takes
  // them one by one, with other work in between.

  // What the pass' list of keys has there: a position, or of chosen keys what the list says.
  __device__ int32_t ListedAt(const MlaKernelArgs& args, Pass pass, int32_t j,
                              int32_t limit) const {
    const int32_t p = pass.key + j;
    if (p >= limit) return kNoKey;
    if (args.lists.chosen != nullptr) {
      const int32_t* chosen = args.lists.chosen + tile.q_begin.raw() * args.lists.top_k + p;
      return LoadHere<int32_t>(reinterpret_cast<const std::byte*>(chosen));
    }
    if (pass.token == kAllTokens) return p;
    if (HasNodesTogether()) {
      const int32_t node = p - nodes_begin;
      return node < 0 || (NodesOf(args, pass.token) >> node & 1) != 0 ? p : kNoKey;
    }
    return PathPosition(args, tile.q_begin + TokenCount(pass.token), p);
  }
  __device__ PagedKey PageOf(const MlaKernelArgs& args, int32_t listed) const {
    if (listed == kNoKey) return {.page = 0, .offset = kNoKey};
    const int32_t position = args.lists.chosen != nullptr ? ChosenPosition(args, listed) : listed;
    return PagedKeyOf(args.plan, args.store, pages, position);
  }
  __device__ int64_t SlotOf(const MlaKernelArgs& args, PagedKey key) const {
    if (key.offset == kNoKey) return -1;
    return cuda::SlotOf(args.store, key, tile.seq, Launch::kMlaAttention, args.status);
  }
  static constexpr int32_t kNoKey = INT32_MIN;

  // The row position of the p-th key that `query` sees.
  __device__ int32_t PathPosition(const MlaKernelArgs& args, TokenCount query, int32_t p) const {
    return static_cast<int32_t>(args.plan.KeyPosition(tile.seq, query, TokenCount(p)).raw());
  }
  // The same of the key that the tile's one query chose. One that the sequence does not have is reported, and
  // its first key stands in.
  __device__ int32_t ChosenPosition(const MlaKernelArgs& args, int32_t chosen) const {
    if (static_cast<uint32_t>(chosen) >= static_cast<uint32_t>(kv_len)) {
      Report(args.status, DeviceFault::kChoice, Launch::kMlaAttention,
             static_cast<uint32_t>(tile.seq));
      return 0;
    }
    return args.plan.IsTree(tile.seq) ? PathPosition(args, tile.q_begin, chosen) : chosen;
  }
};

// ---- bf16 values ----

// Whether one of eight 16-bit values, whose exponents are the bits kExponents of each half, is infinite or
// NaN.
inline constexpr uint32_t kBf16Exponents = 0x7f80'7f80, kF16Exponents = 0x7c00'7c00;
template <uint32_t kExponents>
__device__ inline bool HasNonFinite(uint4 v) {
  auto bad = [](uint32_t pair) {
    constexpr uint32_t kLow = kExponents & 0xffff, kHigh = kExponents & ~0xffffu;
    return (pair & kLow) == kLow || (pair & kHigh) == kHigh;
  };
  return bad(v.x) || bad(v.y) || bad(v.z) || bad(v.w);
}

// ---- Results ----

__device__ inline void WriteLse(const MlaKernelArgs& args, int64_t token, int32_t head, float lse) {
  if (args.lse.data != nullptr) *args.lse.Row<float>(token, head) = lse;
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_WORK_CUH_
