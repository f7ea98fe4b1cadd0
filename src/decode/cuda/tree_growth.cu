// A CTA per draft: what there is of one is little, and of another's nothing is read.
//
// Candidates are ordered by counting, for each, those that are better: a tree of 64 nodes has 456.
#include <cstdint>

#include "attn/sequence_step.h"
#include "decode/cuda/tree_growth.h"
#include "decode/draft_tree.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
// Of the widest and longest drafts: 8 candidates, and 64 for each of 7 levels more.
constexpr int32_t kMostCandidates = NumCandidates(8, 8);
constexpr int32_t kMostNodes = 64;
constexpr int32_t kTurns = (kMostCandidates + kThreads - 1) / kThreads;

// Of candidates that hang on a path without a guess: not above that of the guess before.
constexpr float kNoScore = -1.0f;

// One draft's part of what grows.
struct GrowthView {
  const TokenLogprob* kept;
  float* scores;
  int32_t* tokens;
  int32_t* continued;
  int32_t* row_parents;
};

__device__ GrowthView ViewOf(const TreeGrowths& all, int32_t growth, int32_t place) {
  const GrowthRoom& room = all.room;
  const int64_t candidates = int64_t{growth} * room.branches * room.nodes;
  return {.kept = all.kept.data() + int64_t{place} * room.branches,
          .scores = all.scores.data() + candidates,
          .tokens = all.tokens.data() + candidates,
          .continued = all.continued.data() + int64_t{growth} * (1 + room.nodes),
          .row_parents = all.row_parents.data() + int64_t{growth} * room.nodes};
}

// One of the most likely tokens of a row, as a token of the model. One that no vocabulary has is no guess.
__device__ TokenLogprob TopOf(const RowTops& tops, int32_t row, int32_t number) {
  TokenLogprob top = tops.tokens[int64_t{row} * tops.stride + number];
  if (tops.token_ids.empty()) return top;
  const bool is_known = top.token >= 0 && top.token < static_cast<int64_t>(tops.token_ids.size());
  top.token = is_known ? tops.token_ids.data()[top.token] : kNoToken;
  return top;
}

// As candidate `number`, behind one of score `before`.
__device__ void AddCandidate(const TokenLogprob& guess, float before, int32_t number,
                             const GrowthView& draft) {
  const bool is_sound = isfinite(guess.logprob) && guess.token >= 0;
  draft.scores[number] =
      is_sound && before >= 0 ? before * expf(fminf(guess.logprob, 0.0f)) : kNoScore;
  draft.tokens[number] = is_sound ? guess.token : kNoGuess;
}

// The first level, of what is kept. All threads see it after.
__device__ void TakeFirstLevel(int32_t branches, const GrowthView& draft) {
  if (threadIdx.x == 0) draft.continued[0] = -1;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < branches; i += kThreads) {
    AddCandidate(draft.kept[i], 1.0f, i, draft);
  }
  __syncthreads();
}

// How many of `count` candidates go before one.
__device__ int32_t RankOf(const float* scores, int32_t count, int32_t one) {
  int32_t rank = 0;
  for (int32_t other = 0; other < count; ++other) {
    rank += IsBetterCandidate(scores, other, one) ? 1 : 0;
  }
  return rank;
}

// What a model can read where there is no guess.
__device__ int32_t Readable(int32_t token) { return token < 0 ? 0 : token; }

// ---- Between steps ----

template <class T>
__device__ void CopyAs(const std::byte* from, std::byte* to, int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
  }
}

__global__ void __launch_bounds__(kThreads)
    KeepDraftsKernel(KeepDraftsArgs args, std::byte* states, int64_t state_bytes) {
  TakeTurn();
  const KeptDraft keeps = args.kept.data()[blockIdx.x];
  const std::byte* const from = states + keeps.from * state_bytes;
  std::byte* const to = states + keeps.to * state_bytes;
  if (state_bytes % static_cast<int64_t>(sizeof(uint4)) == 0) {
    CopyAs<uint4>(from, to, state_bytes);
  } else {
    CopyAs<uint16_t>(from, to, state_bytes);
  }
  if (keeps.top < 0) return;
  const int32_t branches = args.growths.room.branches;
  TokenLogprob* const kept = args.growths.kept.data() + int64_t{keeps.place} * branches;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < branches; i += kThreads) {
    kept[i] = TopOf(args.tops, keeps.top, i);
  }
}

// ---- Levels ----

__global__ void __launch_bounds__(kThreads) GrowRowsKernel(GrowRowsArgs args) {
  TakeTurn();
  const GrowingRows rows = args.rows.data()[blockIdx.x];
  const int32_t branches = args.branches;
  const GrowthView draft = ViewOf(args.growths, rows.growth, rows.place);
  const bool is_first = rows.num_levels == 1;
  if (is_first) TakeFirstLevel(branches, draft);
  const int32_t num_rows = branches * (rows.num_levels - 1);  // that it has
  const int32_t count = is_first ? branches : branches * branches;
  const int32_t first = NumCandidates(branches, rows.num_levels) - count;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) {
    const int32_t rank = RankOf(draft.scores + first, count, i);
    if (rank >= branches) continue;
    const int32_t candidate = first + i;
    const int32_t parent = candidate / branches - 1;  // kTreeRoot: the last row
    draft.continued[1 + num_rows + rank] = candidate;
    draft.row_parents[num_rows + rank] = args.forgets_parents ? kTreeRoot : parent;
    args.tokens.data()[rows.first_row + rank] = Readable(draft.tokens[candidate]);
    args.state_of.data()[rows.first_row + rank] =
        rows.first_state + (parent == kTreeRoot ? 0 : parent - (num_rows - branches));
  }
  __syncthreads();
  const PackedSequence& sequence = args.packed.seqs[rows.sequence];
  int32_t* const parents = args.packed.words + sequence.parents_begin;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < sequence.num_nodes; i += kThreads) {
    parents[i] = draft.row_parents[i];
  }
}

__global__ void __launch_bounds__(kThreads) TakeLevelKernel(TakeLevelArgs args) {
  TakeTurn();
  const GrowingRows rows = args.rows.data()[blockIdx.x];
  const int32_t branches = args.branches;
  const GrowthView draft = ViewOf(args.growths, rows.growth, rows.place);
  const int32_t num_rows = branches * (rows.num_levels - 1);
  const int32_t first = NumCandidates(branches, rows.num_levels);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < branches * branches; i += kThreads) {
    const int32_t row = i / branches;
    const float before = draft.scores[draft.continued[1 + num_rows + row]];
    AddCandidate(TopOf(args.tops, rows.first_row + row, i % branches), before, first + i, draft);
  }
}

// ---- Trees ----

// A tree as it is made.
struct TreeStorage {
  float scores[kMostCandidates];
  int32_t node_of[kMostCandidates];  // of candidates; 0: not in the tree
  int32_t tokens[kMostNodes];
  int32_t parents[kMostNodes];
};

// The best candidates, numbered in their order. All threads see it after.
__device__ void SelectNodes(const GrownTree& tree, const GrowthView& draft, TreeStorage& s) {
  const int32_t count = NumCandidates(tree.branches, tree.num_levels);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < count; i += kThreads) s.scores[i] = draft.scores[i];
  __syncthreads();
  for (int32_t i = thread; i < count; i += kThreads) {
    s.node_of[i] = RankOf(s.scores, count, i) < tree.num_nodes - 1 ? 1 : 0;
  }
  __syncthreads();
  int32_t numbers[kTurns] = {};
#pragma unroll
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    const int32_t i = thread + turn * kThreads;
    if (i >= count || s.node_of[i] == 0) continue;
    for (int32_t before = 0; before <= i; ++before) numbers[turn] += s.node_of[before];
  }
  __syncthreads();
#pragma unroll
  for (int32_t turn = 0; turn < kTurns; ++turn) {
    const int32_t i = thread + turn * kThreads;
    if (i < count) s.node_of[i] = numbers[turn];
  }
  __syncthreads();
  for (int32_t i = thread; i < count; i += kThreads) {
    if (s.node_of[i] == 0) continue;
    const int32_t parent = i < tree.branches ? 0 : s.node_of[draft.continued[i / tree.branches]];
    s.tokens[s.node_of[i]] = draft.tokens[i];
    s.parents[s.node_of[i]] = parent;
  }
  __syncthreads();
}

// What a node adds to the output that penalties read: itself first, then what it follows.
__device__ void WritePath(const TreeStorage& s, int32_t node, int32_t* path) {
  for (; node != kTreeRoot; node = s.parents[node]) *path++ = Readable(s.tokens[node]);
}

__global__ void __launch_bounds__(kThreads) PlaceTreesKernel(PlaceTreesArgs args) {
  TakeTurn();
  __shared__ TreeStorage s;
  const GrownTree tree = args.trees.data()[blockIdx.x];
  const GrowthView draft = ViewOf(args.growths, tree.growth, tree.place);
  if (tree.num_levels == 1) TakeFirstLevel(tree.branches, draft);
  if (threadIdx.x == 0) {
    s.tokens[0] = args.tokens.data()[tree.first_row];
    s.parents[0] = kTreeRoot;
  }
  SelectNodes(tree, draft, s);
  const PackedSequence& sequence = args.packed.seqs[tree.sequence];
  const int64_t first_node = int64_t{tree.growth} * args.growths.room.nodes;
  for (int32_t node = static_cast<int32_t>(threadIdx.x); node < tree.num_nodes; node += kThreads) {
    int32_t depth = 0;
    for (int32_t at = s.parents[node]; at != kTreeRoot; at = s.parents[at]) ++depth;
    args.tokens.data()[tree.first_row + node] = Readable(s.tokens[node]);
    args.positions.data()[tree.first_row + node] = TokenCount(tree.position + depth);
    // A chain is no tree for the plan.
    if (sequence.num_nodes > 0) args.packed.words[sequence.parents_begin + node] = s.parents[node];
    args.nodes.tokens.data()[first_node + node] = s.tokens[node];
    args.nodes.parents.data()[first_node + node] = s.parents[node];
    SampleItem& item = args.sampling.items.data()[tree.first_item + node];
    item.position = tree.position + depth + 1;
    if (item.num_path == 0) continue;
    item.num_path = depth + 1;
    WritePath(s, node, args.sampling.text.data() + item.first_path);
  }
}

template <class T>
LaunchShape ShapeOf(std::span<const T> list) {
  return {.grid = dim3(static_cast<unsigned>(list.size())), .block = dim3(kThreads)};
}

}  // namespace

void KeepDrafts(const KeepDraftsArgs& args, const Stream& stream) {
  if (args.kept.empty()) return;
  const int64_t state_bytes = args.states.stride(0) * DTypeBytes(args.states.dtype());
  LaunchAhead("drafts: keep", KeepDraftsKernel, ShapeOf(args.kept), stream, args,
              args.states.data(), state_bytes);
}

void GrowRows(const GrowRowsArgs& args, const Stream& stream) {
  if (args.rows.empty()) return;
  LaunchAhead("drafts: rows", GrowRowsKernel, ShapeOf(args.rows), stream, args);
}

void TakeLevel(const TakeLevelArgs& args, const Stream& stream) {
  if (args.rows.empty()) return;
  LaunchAhead("drafts: level", TakeLevelKernel, ShapeOf(args.rows), stream, args);
}

void PlaceTrees(const PlaceTreesArgs& args, const Stream& stream) {
  if (args.trees.empty()) return;
  LaunchAhead("drafts: trees", PlaceTreesKernel, ShapeOf(args.trees), stream, args);
}

}  // namespace quire::cuda
