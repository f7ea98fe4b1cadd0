// Random configurations drawn from seeds, and the table of what they covered.
#ifndef QUIRE_TESTING_INVARIANTS_RANDOM_CONFIG_H_
#define QUIRE_TESTING_INVARIANTS_RANDOM_CONFIG_H_

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "attn/capacity.h"
#include "base/units.h"
#include "interop/capacity.h"

namespace quire::testing {

// A generator of splitmix64 numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // Uniform, both ends included; low <= high.
  int64_t Between(int64_t low, int64_t high);
  bool OneIn(int64_t n) { return Between(1, n) == 1; }
  int64_t Pick(std::initializer_list<int64_t> values) {
    return *std::next(values.begin(), Between(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  uint64_t state_;
};

enum class ConfigScale {
  kSmall,    // a few sequences of some pages
  kCrowded,  // 16 sequences and more that begin alike
  kLong,     // one or two of up to 100k tokens, or of thousands of pages
};

// The letters are those of the coverage table. L is the committed tokens of a sequence.
struct RandomConfig {
  uint64_t seed = 0;
  ConfigScale scale = ConfigScale::kSmall;
  PageSize page_size{1};         // P
  int64_t context = 1;           // CTX: the most committed tokens
  DraftShape draft;              // K branches, S steps
  int64_t verify_nodes = 1;      // N
  int32_t num_seqs = 1;          // running at most
  int32_t bucket_seqs = 1;       // rows of the bucket
  int64_t num_families = 0;      // sequences of one begin alike; 0: nothing is shared
  int64_t shared_tokens = 0;     // how far
  int64_t pool_pages = 1;        // without the scratch page
  int32_t num_batches = 1;       // run one after the other through the same buffers
  int64_t max_query_tokens = 1;  // of one sequence
  WorkShape work;
  bool uses_threads = false;
  bool runs_attention = false;

  // Slots reserved ahead for the sequence's own tree.
  int64_t TreeNodes() const;
  // The first position of `branch` in SGLang's draft layout, by its own formula.
  int64_t DraftStart(int64_t committed, int64_t branch) const;
  // Tokens that a sequence's pages hold: committed, and whatever may come behind them.
  int64_t ReservedTokens(int64_t committed) const;
  // The fixed capacity of the bucket.
  StepCapacity BucketCapacity() const;
};

RandomConfig DrawConfig(uint64_t seed);
std::string ToString(const RandomConfig& config);

// What a configuration has had in it.
enum Fact {
  kCrowdedAndShared,   // 16+ sequences in one batch, and a page that two of them hold
  kNearContextLimit,   // a sequence within N + S of the context limit, which is farther than that
  kPaddedBucket,       // fewer sequences than rows
  kPaddedRow,          // a padded row given as a sequence
  kVerifyPastContext,  // L + N > CTX
  kDraftsPastContext,  // L + S > CTX
  kLengthOne,
  kLengthPageMinusOne,
  kLengthPage,
  kLengthPagePlusOne,
  kLengthContextMinusOne,
  kLengthContext,
  kSharedPages,
  kPartialPageMatch,
  kEviction,
  kPreemption,
  kWideTree,           // more nodes than a mask word has bits
  kManyPages,          // a row of more pages than one range
  kLongContext,        // a sequence of 32k tokens or more
  kCutTile,            // a query tile that several workers share
  kCutPrefill,         // the same in a prefill plan
  kAttention,          // cpu::MlaAttention ran in both forms
  kSparseChoice,       // a query that saw more keys than it could choose
  kSparsePreshuffled,  // by preshuffled index keys, too
  kSparseEverything,   // and a choice of everything
  kThreads,
  kRuleCeil,  // block tables, in the order of BlockTableRule
  kRuleFlashMlaEager,
  kRuleFlashMlaGraph,
  kRuleCutlassEager,
  kRuleCutlassGraph,
  kRuleTrtllm,
  kFormatF32,  // stores, in the order of KvFormat
  kFormatBf16,
  kFormatFp8,
  kFormatIndexKeyF32,
  kFormatIndexKeyBf16,
  kFormatIndexKey,
  kFormatPreshuffled,
  kRefusedFlat,  // buffers a bit too small for what is to be written
  kRefusedTable,
  kRefusedDrafts,
  kRefusedPlan,
  kNumFacts,
};
using Facts = std::bitset<kNumFacts>;

// Counts configurations.
class Coverage {
 public:
  void Add(const RandomConfig& config, const Facts& facts);

  int64_t num_configs() const { return num_configs_; }
  // One line per count: what, how many, how many it must be.
  std::string Table() const;
  // The lines that fall short, empty if none does.
  std::string Missing() const;

 private:
  struct Line {
    std::string what;
    int64_t count;
    int64_t at_least;
  };
  std::vector<Line> Lines() const;

  int64_t num_configs_ = 0;
  std::array<int64_t, kNumFacts> facts_{};
  std::array<int64_t, PageSize::kMax + 1> page_sizes_{};
  std::array<int64_t, 9> branches_{}, steps_{};  // by value, 1..8
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_RANDOM_CONFIG_H_
