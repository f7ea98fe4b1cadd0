#include "decode/cuda/tree_growth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/sequence_step.h"
#include "decode/draft_tree.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

constexpr int32_t kDrafts = 3;
constexpr int32_t kHidden = 20;  // of bf16: not a multiple of 16 bytes
constexpr int32_t kRootToken = 7;
constexpr int32_t kNumTokens = 1000;

struct Shape {
  int32_t steps, branches, nodes;
  bool has_faults = false;  // rows of NaN among the levels
  bool is_head = false;     // tokens are a head's, and others of the model
};

// One draft as the host grows it.
struct HostDraft {
  std::vector<float> scores;
  std::vector<int32_t> tokens, continued = {-1}, row_parents;

  void Add(const std::vector<TokenLogprob>& best, float before) {
    for (const TokenLogprob& guess : best) {
      const bool is_sound = std::isfinite(guess.logprob);
      scores.push_back(is_sound && before >= 0 ? before * std::exp(guess.logprob) : -1.0f);
      tokens.push_back(is_sound ? guess.token : kNoGuess);
    }
  }
  // The best of the last `count` candidates, as rows.
  std::vector<int32_t> Continue(size_t count, int32_t branches) {
    std::vector<int32_t> best(count);
    std::iota(best.begin(), best.end(), static_cast<int32_t>(scores.size() - count));
    std::ranges::sort(best,
                      [&](int32_t a, int32_t b) { return IsBetterCandidate(scores.data(), a, b); });
    best.resize(static_cast<size_t>(branches));
    for (const int32_t candidate : best) {
      continued.push_back(candidate);
      row_parents.push_back(candidate / branches - 1);
    }
    return best;
  }
};

// A packed step of as many sequences, each with the tree of one draft; parents are yet to be written.
struct PackedTrees {
  explicit PackedTrees(int32_t nodes)
      : seqs(kDrafts), words(static_cast<size_t>(kDrafts * nodes), 99) {
    for (int32_t i = 0; i < kDrafts; ++i) {
      seqs[static_cast<size_t>(i)] = {.num_nodes = nodes, .parents_begin = i * nodes};
    }
  }
  std::vector<PackedSequence> seqs;
  std::vector<int32_t> words;
};

class TreeGrowthTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }

  // `rows` rows of `branches` guesses, kMaxTopLogprobs apart, whose probabilities are well apart.
  std::vector<TokenLogprob> RandomTops(int32_t rows, int32_t branches, bool has_faults) {
    std::vector<TokenLogprob> tops(static_cast<size_t>(rows * kMaxTopLogprobs));
    for (int32_t row = 0; row < rows; ++row) {
      const bool is_faulty = has_faults && random_() % 4 == 0;
      float logprob = -0.01f * static_cast<float>(1 + random_() % 50);
      for (int32_t i = 0; i < branches; ++i) {
        tops[static_cast<size_t>(row * kMaxTopLogprobs + i)] = {
            .token = static_cast<int32_t>(random_() % kNumTokens),
            .logprob = is_faulty ? std::numeric_limits<float>::quiet_NaN() : logprob};
        logprob -= 0.013f * static_cast<float>(1 + random_() % 90);
      }
    }
    return tops;
  }
  static std::vector<TokenLogprob> RowOf(const std::vector<TokenLogprob>& tops, int32_t row,
                                         int32_t branches) {
    const auto first = tops.begin() + row * kMaxTopLogprobs;
    return {first, first + branches};
  }

  // Of a head's tokens.
  static std::vector<int32_t> TokenIds() {
    std::vector<int32_t> ids(kNumTokens);
    for (int32_t i = 0; i < kNumTokens; ++i) ids[static_cast<size_t>(i)] = 3 * i + 1;
    return ids;
  }

  std::mt19937_64 random_{5};
};

TEST_P(TreeGrowthTest, TreesAreThoseThatTheHostGrows) {
  const Stream stream;
  const auto [steps, branches, nodes, has_faults, is_head] = GetParam();
  const GrowthRoom room{
      .growths = kDrafts, .branches = branches, .nodes = std::max(nodes, branches * steps)};
  Carver counter;
  LayOutTreeGrowths(room, counter);
  const DeviceVector<std::byte> memory(
      std::vector<std::byte>(static_cast<size_t>(counter.used().raw()), std::byte{0xA5}));
  Carver carver(memory.bytes(), MemorySide::kDevice);
  const TreeGrowths growths = LayOutTreeGrowths(room, carver);
  const auto place_of = [](int32_t draft) { return (draft + 1) % kDrafts; };
  std::vector<HostDraft> drafts(kDrafts);
  const DeviceVector<int32_t> ids_there(TokenIds());
  const auto tops_at = [&](const DeviceVector<TokenLogprob>& tops) -> RowTops {
    return {.tokens = tops.span().data(),
            .stride = kMaxTopLogprobs,
            .token_ids = is_head ? ids_there.span() : std::span<int32_t>()};
  };
  const auto row_of = [&](const std::vector<TokenLogprob>& tops, int32_t row) {
    std::vector<TokenLogprob> best = RowOf(tops, row, branches);
    for (TokenLogprob& guess : best) {
      if (is_head) guess.token = TokenIds()[static_cast<size_t>(guess.token)];
    }
    return best;
  };

  // What is kept: row i of the first pass, of the sequence in place_of(i).
  std::vector<uint16_t> states(static_cast<size_t>(2 * kDrafts * kHidden));
  std::iota(states.begin(), states.end(), uint16_t{0});
  const DeviceVector<uint16_t> on_device(states);
  std::vector<KeptDraft> keeps;
  const std::vector<TokenLogprob> first = RandomTops(kDrafts, branches, false);
  for (int32_t i = 0; i < kDrafts; ++i) {
    keeps.push_back({.from = i, .to = kDrafts + i, .top = i, .place = place_of(i)});
    drafts[static_cast<size_t>(i)].Add(row_of(first, i), 1.0f);
    for (int32_t k = 0; k < kHidden; ++k) {
      states[static_cast<size_t>((kDrafts + i) * kHidden + k)] =
          states[static_cast<size_t>(i * kHidden + k)];
    }
  }
  const DeviceVector<KeptDraft> keeps_there(keeps);
  const DeviceVector<TokenLogprob> first_there(first);
  KeepDrafts({.growths = growths,
              .kept = keeps_there.span(),
              .tops = tops_at(first_there),
              .states = TensorView(on_device.bytes().data(), DType::kBf16, {2 * kDrafts, kHidden},
                                   MemorySide::kDevice)},
             stream);
  EXPECT_EQ(on_device.Values(stream), states);

  for (int32_t level = 1; level < steps; ++level) {
    const int32_t num_rows = branches * (level - 1);
    const PackedTrees packed(num_rows + branches);
    const DeviceVector<PackedSequence> seqs(packed.seqs);
    const DeviceVector<int32_t> words(packed.words);
    const std::vector<int32_t> unwritten(static_cast<size_t>(kDrafts * branches), -9);
    const DeviceVector<int32_t> tokens(unwritten), state_of(unwritten);
    std::vector<GrowingRows> rows;
    for (int32_t i = 0; i < kDrafts; ++i) {
      rows.push_back({.growth = i,
                      .place = place_of(i),
                      .num_levels = level,
                      .sequence = i,
                      .first_row = i * branches,
                      .first_state = 100 * i});
    }
    const DeviceVector<GrowingRows> list(rows);
    GrowRows({.growths = growths,
              .rows = list.span(),
              .branches = branches,
              .tokens = tokens.span(),
              .state_of = state_of.span(),
              .packed = {.seqs = seqs.span().data(), .words = words.span().data()}},
             stream);
    std::vector<int32_t> expected_tokens, expected_states, expected_parents;
    const std::vector<TokenLogprob> tops = RandomTops(kDrafts * branches, branches, has_faults);
    for (int32_t i = 0; i < kDrafts; ++i) {
      HostDraft& draft = drafts[static_cast<size_t>(i)];
      const std::vector<int32_t> best = draft.Continue(
          static_cast<size_t>(level == 1 ? branches : branches * branches), branches);
      for (const int32_t candidate : best) {
        const int32_t parent = candidate / branches - 1;
        expected_tokens.push_back(std::max(draft.tokens[static_cast<size_t>(candidate)], 0));
        expected_states.push_back(100 * i + (parent < 0 ? 0 : parent - (num_rows - branches)));
      }
      expected_parents.insert(expected_parents.end(), draft.row_parents.begin(),
                              draft.row_parents.end());
      for (int32_t k = 0; k < branches; ++k) {
        draft.Add(row_of(tops, i * branches + k),
                  draft.scores[static_cast<size_t>(best[static_cast<size_t>(k)])]);
      }
    }
    EXPECT_EQ(tokens.Values(stream), expected_tokens) << "level " << level;
    EXPECT_EQ(state_of.Values(stream), expected_states) << "level " << level;
    EXPECT_EQ(words.Values(stream), expected_parents) << "level " << level;
    const DeviceVector<TokenLogprob> tops_there(tops);
    TakeLevel({.growths = growths,
               .rows = list.span(),
               .branches = branches,
               .tops = tops_at(tops_there)},
              stream);
    stream.Synchronize();
  }

  const PackedTrees packed(nodes);
  const DeviceVector<PackedSequence> seqs(packed.seqs);
  const DeviceVector<int32_t> words(packed.words);
  const auto num_rows = static_cast<size_t>(kDrafts * nodes);
  const DeviceVector<int32_t> tokens(std::vector<int32_t>(num_rows, kRootToken));
  const DeviceVector<TokenCount> positions(std::vector<TokenCount>(num_rows, TokenCount(0)));
  const DeviceVector<int32_t> text(std::vector<int32_t>(num_rows * static_cast<size_t>(nodes), -9));
  std::vector<SampleItem> items(num_rows);
  std::vector<GrownTree> trees;
  for (int32_t i = 0; i < kDrafts; ++i) {
    trees.push_back({.growth = i,
                     .place = place_of(i),
                     .branches = branches,
                     .num_levels = steps,
                     .num_nodes = nodes,
                     .sequence = i,
                     .first_row = i * nodes,
                     .first_item = i * nodes,
                     .position = 1000 * (i + 1)});
    for (int32_t node = 0; node < nodes; ++node) {
      const int32_t row = i * nodes + node;
      items[static_cast<size_t>(row)] = {.first_path = row * nodes,
                                         .num_path = i == 1 ? 0 : node + 1};
    }
  }
  const DeviceVector<SampleItem> items_there(items);
  const std::vector<int32_t> unwritten(static_cast<size_t>(room.growths * room.nodes), -9);
  const DeviceVector<int32_t> node_tokens(unwritten), node_parents(unwritten);
  const DeviceVector<GrownTree> trees_there(trees);
  PlaceTrees({.growths = growths,
              .trees = trees_there.span(),
              .tokens = tokens.span(),
              .positions = positions.span(),
              .packed = {.seqs = seqs.span().data(), .words = words.span().data()},
              .sampling = {.items = items_there.span(), .text = text.span()},
              .nodes = {.tokens = node_tokens.span(), .parents = node_parents.span()}},
             stream);

  const std::vector<int32_t> got_tokens = tokens.Values(stream), got_words = words.Values(stream),
                             got_text = text.Values(stream),
                             got_node_tokens = node_tokens.Values(stream),
                             got_node_parents = node_parents.Values(stream);
  const std::vector<TokenCount> got_positions = positions.Values(stream);
  const std::vector<SampleItem> got_items = items_there.Values(stream);
  for (int32_t i = 0; i < kDrafts; ++i) {
    const HostDraft& draft = drafts[static_cast<size_t>(i)];
    DraftTree tree;
    SelectTree({.branches = branches,
                .scores = draft.scores,
                .tokens = draft.tokens,
                .continued = draft.continued},
               kRootToken, nodes, tree);
    for (int32_t node = 0; node < nodes; ++node) {
      SCOPED_TRACE("draft " + std::to_string(i) + ", node " + std::to_string(node));
      const auto at = static_cast<size_t>(node);
      const auto row = static_cast<size_t>(i * nodes + node);
      std::vector<int32_t> path;
      for (int32_t n = node; n != kTreeRoot; n = tree.parents[static_cast<size_t>(n)]) {
        path.push_back(std::max(tree.tokens[static_cast<size_t>(n)], 0));
      }
      const auto depth = std::ssize(path) - 1;
      EXPECT_EQ(got_tokens[row], std::max(tree.tokens[at], 0));
      EXPECT_EQ(got_words[row], tree.parents[at]);
      EXPECT_EQ(got_positions[row], TokenCount(1000 * (i + 1) + depth));
      EXPECT_EQ(got_items[row].position, 1000 * (i + 1) + depth + 1);
      const auto there = static_cast<size_t>(i * room.nodes + node);
      EXPECT_EQ(got_node_tokens[there], tree.tokens[at]);
      EXPECT_EQ(got_node_parents[there], tree.parents[at]);
      const bool has_path = i != 1;
      EXPECT_EQ(got_items[row].num_path, has_path ? depth + 1 : 0);
      for (size_t k = 0; k < path.size(); ++k) {
        EXPECT_EQ(got_text[row * static_cast<size_t>(nodes) + k], has_path ? path[k] : -9);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, TreeGrowthTest,
                         ::testing::Values(Shape{1, 1, 2}, Shape{1, 4, 5}, Shape{3, 1, 4},
                                           Shape{3, 4, 8}, Shape{5, 8, 32}, Shape{8, 8, 64},
                                           Shape{8, 1, 9}, Shape{3, 1, 4, true},
                                           Shape{5, 8, 64, true}, Shape{4, 3, 30, true},
                                           Shape{3, 1, 4, false, true},
                                           Shape{5, 8, 32, true, true}),
                         [](const auto& shape) {
                           const Shape& is = shape.param;
                           return std::to_string(is.steps) + "_" + std::to_string(is.branches) +
                                  "_" + std::to_string(is.nodes) +
                                  (is.has_faults ? "_faulty" : "") + (is.is_head ? "_head" : "");
                         });

}  // namespace
}  // namespace quire::cuda
