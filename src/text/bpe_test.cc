#include "text/bpe.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "testing/sanitized_share.h"
#include "testing/splitmix64.h"

namespace quire {
namespace {

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode(word, scratch, ids);
  return ids;
}

// By the definition: look at all pairs, merge the leftmost of the most urgent, and again.
class NaiveBpe {
 public:
  explicit NaiveBpe(const BpeSpec& spec) {
    for (const BpeToken& token : spec.tokens) ids_[token.text] = token.id;
    for (const BpeMerge& merge : spec.merges) merges_[{merge.left, merge.right}] = merge.merge;
  }

  std::vector<int32_t> Encode(std::string_view word) const {
    std::vector<int32_t> ids;
    for (const char byte : word) ids.push_back(ids_.at(std::string(1, byte)));
    while (true) {
      Merge best = {.rank = std::numeric_limits<int32_t>::max()};
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto merge = merges_.find({ids[i], ids[i + 1]});
        if (merge == merges_.end() || merge->second.rank >= best.rank) continue;
        best = merge->second;
        at = i;
      }
      if (best.result < 0) return ids;
      ids[at] = best.result;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
  }

 private:
  std::map<std::string, int32_t> ids_;
  std::map<std::pair<int32_t, int32_t>, Merge> merges_;
};

// Merges drawn at random over a small alphabet.
BpeSpec RandomSpec(uint64_t seed, int num_letters, int num_merges) {
  BpeSpec spec;
  for (int i = 0; i < num_letters; ++i) {
    spec.tokens.push_back({std::string(1, static_cast<char>('a' + i)), i});
  }
  std::map<std::string, int32_t> ids;
  for (const BpeToken& token : spec.tokens) ids[token.text] = token.id;
  for (int rank = 0; rank < num_merges; ++rank) {
    const auto draw = [&] {
      return spec
          .tokens[testing::SplitMix64(seed += testing::kSplitMix64Step) % spec.tokens.size()];
    };
    const BpeToken left = draw();
    const BpeToken right = draw();
    const std::string text = left.text + right.text;
    if (text.size() > 12) continue;
    const auto [known, is_new] = ids.try_emplace(text, static_cast<int32_t>(spec.tokens.size()));
    if (is_new) spec.tokens.push_back({text, known->second});
    spec.merges.push_back({left.id, right.id, {.rank = rank, .result = known->second}});
  }
  return spec;
}

TEST(BpeTest, RandomWordsAreMergedAsTheDefinitionSays) {
  for (uint64_t seed = 1; seed <= testing::SanitizedShare(uint64_t{60}); ++seed) {
    SCOPED_TRACE(seed);
    // With 20 letters and few merges many pairs are in no token, so that long words are cut.
    const int num_letters = seed % 2 == 0 ? 3 : 20;
    const BpeSpec spec = RandomSpec(seed, num_letters, 40);
    const Bpe bpe(spec);
    const NaiveBpe naive(spec);
    uint64_t state = seed;
    for (int trial = 0; trial < 60; ++trial) {
      std::string word;
      // Up to 48 symbols are merged by scanning, more with a heap.
      for (int i = 0; i < trial * trial / 12; ++i) {
        const uint64_t draw = testing::SplitMix64(state += testing::kSplitMix64Step);
        word += static_cast<char>('a' + draw % num_letters);
      }
      ASSERT_EQ(Encode(bpe, word), naive.Encode(word)) << word;
    }
  }
}

TEST(BpeTest, AnEmptyWordHasNoTokens) { EXPECT_TRUE(Encode(Bpe(RandomSpec(1, 3, 5)), "").empty()); }

TEST(BpeTest, AWholeWordComesFirstOnlyIfTheSpecSaysSo) {
  BpeSpec spec;
  spec.tokens = {{"a", 0}, {"b", 1}, {"ab", 2}};
  EXPECT_EQ(Encode(Bpe(spec), "ab"), (std::vector<int32_t>{0, 1}));
  spec.whole_words_first = true;
  EXPECT_EQ(Encode(Bpe(spec), "ab"), (std::vector<int32_t>{2}));
  EXPECT_EQ(Encode(Bpe(spec), "aba"), (std::vector<int32_t>{0, 1, 0}));
}

BpeSpec CharacterSpec() {
  return {.unit = BpeSpec::Unit::kCharacter, .tokens = {{"a", 0}, {"é", 1}, {"<unk>", 2}}};
}

TEST(BpeTest, WhatIsNoTokenBecomesUnknownOrNothing) {
  BpeSpec spec = CharacterSpec();
  EXPECT_EQ(Encode(Bpe(spec), "aéxyéz"), (std::vector<int32_t>{0, 1, 1}));
  spec.unknown = 2;
  EXPECT_EQ(Encode(Bpe(spec), "aéxyéz"), (std::vector<int32_t>{0, 1, 2, 2, 1, 2}));
  spec.fuse_unknown = true;
  EXPECT_EQ(Encode(Bpe(spec), "aéxyéz"), (std::vector<int32_t>{0, 1, 2, 1, 2}));
  // Long enough to be cut, but not between unknown ones.
  EXPECT_EQ(Encode(Bpe(spec), std::string(100, 'x') + "a"), (std::vector<int32_t>{2, 0}));
}

TEST(BpeTest, WhatIsNoTokenBecomesItsBytesIfAllOfThemAreTokens) {
  BpeSpec spec = CharacterSpec();
  spec.unknown = 2;
  spec.byte_tokens[0xc3] = 5;
  spec.byte_tokens[0xb6] = 6;
  EXPECT_EQ(Encode(Bpe(spec), "aöü"), (std::vector<int32_t>{0, 5, 6, 2}));
}

TEST(BpeTest, ALongWordStopsWhenAskedTo) {
  const Bpe bpe({.tokens = {{"a", 0}, {"aa", 1}},
                 .merges = {{.left = 0, .right = 0, .merge = {.rank = 0, .result = 1}}}});
  const std::string word(100, 'a');
  std::stop_source stop;
  Bpe::Scratch scratch{.stop = stop.get_token()};
  std::vector<int32_t> ids;
  bpe.Encode(word, scratch, ids);
  EXPECT_EQ(ids, std::vector<int32_t>(50, 1));
  stop.request_stop();
  EXPECT_THROW(bpe.Encode(word, scratch, ids), Error);
}

}  // namespace
}  // namespace quire
