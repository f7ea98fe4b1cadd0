// The cases of latent attention, for every backend's test.
#ifndef QUIRE_KERNELS_MLA_ATTENTION_CASES_H_
#define QUIRE_KERNELS_MLA_ATTENTION_CASES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/kv_layout.h"
#include "base/executor.h"
#include "kernels/cpu/store.h"
#include "testing/paged_batch.h"

namespace quire::testing {

// A tree of two chains and a fork: node 0 is the root, 1 and 2 hang on it, 3 on 1, 4 on 2, 5 on 3.
inline const std::vector<int32_t> kTree = {-1, 0, 0, 1, 2, 3};

// A root, and all others on it: paths end long before the nodes do.
inline std::vector<int32_t> Bush(size_t nodes) {
  std::vector<int32_t> parents(nodes, 0);
  parents[0] = -1;
  return parents;
}

struct AttentionCase {
  const char* name;
  std::vector<SequenceCase> seqs;
  int32_t num_heads;
  KvDims dims = {512, 64};
  KvFormat format = KvFormat::kLatentBf16;
  std::vector<int> page_sizes = {1, 2, 16, 61, 64, 128};
};

// Lengths around a page, for whichever page size.
inline std::vector<SequenceCase> AroundAPage(int64_t page) {
  std::vector<SequenceCase> seqs;
  uint64_t seed = 10;
  for (int64_t kv_len : {int64_t{0}, int64_t{1}, page - 1, page, page + 1, 3 * page + 2}) {
    seqs.push_back({.q_len = 1, .kv_len = kv_len, .seed = ++seed});
  }
  return seqs;
}

// More than a warp has lanes, of up to 150 keys each.
inline std::vector<SequenceCase> ManySequences() {
  std::vector<SequenceCase> seqs;
  for (int64_t i = 0; i < 40; ++i) {
    seqs.push_back({.q_len = 1, .kv_len = i * 37 % 151, .seed = static_cast<uint64_t>(100 + i)});
  }
  return seqs;
}

inline const AttentionCase kAttentionCases[] = {
    {"decode around page 64", AroundAPage(64), 16},
    {"decode around page 61", AroundAPage(61), 16},
    {"decode around page 128", AroundAPage(128), 8},
    {"one head", AroundAPage(16), 1},
    {"decode of many sequences", ManySequences(), 4, {512, 64}, KvFormat::kLatentBf16, {1, 64}},
    {"twenty heads", AroundAPage(16), 20},
    {"128 heads", {{1, 130, {}, 3}, {1, 64, {}, 4}}, 128},
    {"MiniCPM3", {{1, 100, {}, 3}, {5, 77, {}, 4}}, 40, {256, 32}},
    {"odd dims", {{3, 70, {}, 3}, {1, 129, {}, 4}}, 3, {21, 5}},
    {"no rope part", {{2, 65, {}, 3}}, 2, {64, 0}},
    {"prefill from nothing", {{70, 70, {}, 3}}, 4},
    {"prefill chunk over a prefix", {{33, 160, {}, 3}, {1, 5, {}, 5}}, 4},
    {"more queries than keys", {{5, 3, {}, 3}, {4, 0, {}, 4}, {2, 2, {}, 5}}, 16},
    {"several splits", {{2, 2200, {}, 3}, {1, 1025, {}, 4}}, 4},
    {"f32 store", {{3, 150, {}, 3}}, 16, {512, 64}, KvFormat::kLatentF32},
    {"fp8 store", {{3, 150, {}, 3}}, 16, {512, 64}, KvFormat::kLatentFp8},
    {"fp8 store, 128 heads",
     {{1, 200, {}, 3}, {3, 150, {}, 4}, {6, 134, kTree, 5}},
     128,
     {512, 64},
     KvFormat::kLatentFp8,
     {1, 61, 64}},
    {"fp8 store, MiniCPM3", {{3, 150, {}, 3}}, 8, {256, 32}, KvFormat::kLatentFp8},
    {"tree", {{6, 106, kTree, 3}, {1, 40, {}, 4}, {6, 70, kTree, 5}}, 4},
    {"tree at the very start", {{6, 6, kTree, 3}}, 4},
    {"last level of a tree", {{3, 106, kTree, 3}, {1, 68, kTree, 6}}, 16},
    {"tree over the border of a tile", {{6, 130, kTree, 3}, {6, 69, kTree, 4}}, 16},
    {"bush over the border of a tile", {{40, 140, Bush(40), 3}, {9, 64, Bush(9), 4}}, 16},
    {"bush of more nodes than a word", {{70, 200, Bush(70), 3}}, 16},
    {"no queries at all", {{0, 50, {}, 3}, {1, 20, {}, 4}, {0, 0, {}, 5}}, 4},
};

// A batch with everything in it: decode, chunk, tree, padding, splits.
inline std::vector<SequenceCase> MixedSequences() {
  return {{1, 1500, {}, 3},  {40, 200, {}, 4},   {6, 1026, kTree, 5}, {1, 0, {}, 6},
          {3, 64, kTree, 7}, {2, 2049, {}, 8},   {1, 1, {}, 9},       {5, 3, {}, 10},
          {7, 1024, {}, 11}, {6, 134, kTree, 12}};
}

// The path of `node`, root first.
inline std::vector<int64_t> PathOf(const std::vector<int32_t>& parents, int64_t node) {
  std::vector<int64_t> path;
  for (int64_t i = node; i >= 0; i = parents[static_cast<size_t>(i)]) path.push_back(i);
  std::reverse(path.begin(), path.end());
  return path;
}

// Has all 576 values of a key be `value`.
inline void OverwriteRow(const PagedBatch& batch, size_t seq, int64_t position, float value) {
  SerialExecutor executor;
  const Slot slot = batch.SlotAt(seq, position);
  const std::vector<float> row(576, value);
  cpu::StoreWrite({.store = batch.store(),
                   .slots = {&slot, 1},
                   .latent = ConstTensorView(row.data(), {1, 512}),
                   .rope = ConstTensorView(row.data() + 512, {1, 64})},
                  executor);
}

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_MLA_ATTENTION_CASES_H_
