#include "testing/invariants/random_config.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/format.h"
#include "testing/splitmix64.h"

namespace quire::testing {
namespace {

// The most entries of all draft rows of a batch: what a test can look at ten thousand times.
constexpr int64_t kMaxDraftEntries = 200'000;

// Page sizes that kernels of other engines want, and those that divide nothing.
int64_t DrawPageSize(Random& random) {
  if (random.OneIn(2)) return random.Between(PageSize::kMin, PageSize::kMax);
  return random.Pick({1, 2, 3, 16, 32, 61, 64, 128, 256});
}

ConfigScale DrawScale(Random& random) {
  const int64_t percent = random.Between(0, 99);
  if (percent < 2) return ConfigScale::kLong;
  return percent < 15 ? ConfigScale::kCrowded : ConfigScale::kSmall;
}

int64_t DrawContext(Random& random, ConfigScale scale, int64_t page_size) {
  switch (scale) {
    case ConfigScale::kLong:
      if (page_size >= 32) return random.Between(20'000, 100'000);
      return random.Between(1025, 1500) * std::min<int64_t>(page_size, 8) + random.Between(0, 2000);
    case ConfigScale::kCrowded:
      return page_size + random.Between(1, page_size + 40);
    case ConfigScale::kSmall:
      if (random.OneIn(8)) return random.Between(1, 9);
      return random.Between(1, 3 * page_size + 70);
  }
  return 1;
}

int32_t DrawNumSeqs(Random& random, ConfigScale scale) {
  switch (scale) {
    case ConfigScale::kLong:
      return static_cast<int32_t>(random.Between(1, 2));
    case ConfigScale::kCrowded:
      return static_cast<int32_t>(random.Between(16, 24));
    case ConfigScale::kSmall:
      return static_cast<int32_t>(random.Between(1, 8));
  }
  return 1;
}

// Branches and steps that leave the draft rows of a batch at a bearable size.
DraftShape DrawDraft(Random& random, int64_t tokens_of_batch) {
  DraftShape draft{.branches = static_cast<int32_t>(random.Between(1, 8)),
                   .steps = static_cast<int32_t>(random.Between(1, 8))};
  while (int64_t{draft.branches} * draft.steps * tokens_of_batch > kMaxDraftEntries &&
         draft.branches * draft.steps > 2) {
    int32_t& larger = draft.branches > draft.steps ? draft.branches : draft.steps;
    --larger;
  }
  return draft;
}

int64_t DrawFamilies(Random& random, ConfigScale scale) {
  const bool shares = scale == ConfigScale::kCrowded ? !random.OneIn(10) : random.OneIn(2);
  return shares ? random.Between(1, 3) : 0;
}

// Pages for all sequences at their longest; for small configurations sometimes too few, so that
// cached pages are evicted and sequences preempted. One sequence always fits, and the cached page
// that its match may end in.
int64_t DrawPoolPages(Random& random, const RandomConfig& config) {
  const PageSize page_size = config.page_size;
  // What is reserved behind the committed tokens depends on where in a page they end.
  int64_t one = 0;
  for (int64_t committed = std::max<int64_t>(1, config.context - page_size.raw() + 1);
       committed <= config.context; ++committed) {
    const TokenCount reserved(config.ReservedTokens(committed));
    one = std::max(one, page_size.PagesFor(reserved).raw());
  }
  const int64_t percent = config.scale == ConfigScale::kSmall ? random.Between(20, 110) : 105;
  return std::max(one, one * config.num_seqs * percent / 100) + random.Between(1, 3);
}

struct FactRule {
  Fact fact;
  const char* what;
  int64_t at_least;
};

constexpr FactRule kFactRules[] = {
    {kCrowdedAndShared, "16+ sequences, shared prefixes", 500},
    {kNearContextLimit, "within N + S of the context limit", 200},
    {kPaddedBucket, "padded bucket", 2000},
    {kPaddedRow, "padded row as a sequence", 1000},
    {kVerifyPastContext, "L + N past the context", 500},
    {kDraftsPastContext, "L + S past the context", 500},
    {kLengthOne, "L = 1", 500},
    {kLengthPageMinusOne, "L = P - 1", 500},
    {kLengthPage, "L = P", 500},
    {kLengthPagePlusOne, "L = P + 1", 500},
    {kLengthContextMinusOne, "L = CTX - 1", 500},
    {kLengthContext, "L = CTX", 500},
    {kSharedPages, "pages shared by sequences", 1000},
    {kPartialPageMatch, "prefix match inside a page", 500},
    {kEviction, "cached pages evicted", 200},
    {kPreemption, "sequence without pages", 100},
    {kWideTree, "more than 64 tree nodes", 200},
    {kManyPages, "row of more than 1024 pages", 50},
    {kLongContext, "sequence of 32k tokens or more", 30},
    {kCutTile, "tile shared by workers", 1000},
    {kCutPrefill, "prefill tile shared by workers", 1000},
    {kAttention, "attention in both forms", 400},
    {kSparseChoice, "sparse: keys chosen", 200},
    {kSparsePreshuffled, "sparse: preshuffled too", 20},
    {kSparseEverything, "sparse: everything chosen", 400},
    {kThreads, "with threads", 200},
    {kRuleCeil, "block table: ceil", 10'000},
    {kRuleFlashMlaEager, "block table: flashmla eager", 200},
    {kRuleFlashMlaGraph, "block table: flashmla graph", 200},
    {kRuleCutlassEager, "block table: cutlass eager", 200},
    {kRuleCutlassGraph, "block table: cutlass graph", 200},
    {kRuleTrtllm, "block table: trtllm", 400},
    {kFormatF32, "store: latent f32", 1000},
    {kFormatBf16, "store: latent bf16", 1000},
    {kFormatFp8, "store: latent fp8", 1000},
    {kFormatIndexKeyF32, "store: index key f32", 1000},
    {kFormatIndexKeyBf16, "store: index key bf16", 1000},
    {kFormatIndexKey, "store: index key fp8", 1000},
    {kFormatPreshuffled, "store: index key preshuffled", 1000},
    {kRefusedFlat, "refused: flat forms", 10'000},
    {kRefusedTable, "refused: tables", 10'000},
    {kRefusedDrafts, "refused: draft forms", 10'000},
    {kRefusedPlan, "refused: plan", 10'000},
};
static_assert(std::size(kFactRules) == kNumFacts);

}  // namespace

uint64_t Random::Next() {
  const uint64_t number = SplitMix64(state_);
  state_ += kSplitMix64Step;
  return number;
}

int64_t Random::Between(int64_t low, int64_t high) {
  QUIRE_CHECK(low <= high, "between {} and {}", low, high);
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

int64_t RandomConfig::TreeNodes() const {
  return std::max<int64_t>(int64_t{draft.branches} * draft.steps, verify_nodes);
}

int64_t RandomConfig::DraftStart(int64_t committed, int64_t branch) const {
  const int64_t page = page_size.raw();
  if (page == 1 || draft.branches == 1) return committed + branch * draft.steps;
  const int64_t last = committed % page;
  const int64_t pages_per_branch = (last + draft.steps + page - 1) / page;
  return committed - last + branch * pages_per_branch * page + last;
}

int64_t RandomConfig::ReservedTokens(int64_t committed) const {
  return std::max(committed + TreeNodes(), DraftStart(committed, draft.branches - 1) + draft.steps);
}

StepCapacity RandomConfig::BucketCapacity() const {
  return {.num_seqs = bucket_seqs,
          .query_tokens = TokenCount(max_query_tokens) * bucket_seqs,
          .context = TokenCount(context),
          .tree_nodes = TokenCount(TreeNodes()),
          .page_size = page_size,
          .pool_pages = PageCount(pool_pages + 1)};
}

RandomConfig DrawConfig(uint64_t seed) {
  Random random(seed);
  RandomConfig config;
  config.seed = seed;
  config.scale = DrawScale(random);
  const bool is_long = config.scale == ConfigScale::kLong;
  // Only small pages make rows of many pages, and only long sequences have any.
  const int64_t page = is_long && random.OneIn(2) ? random.Between(1, 8) : DrawPageSize(random);
  config.page_size = PageSize(page);
  config.context = DrawContext(random, config.scale, page);
  config.num_seqs = DrawNumSeqs(random, config.scale);
  config.bucket_seqs =
      config.num_seqs + static_cast<int32_t>(random.OneIn(3) ? 0 : random.Between(1, 8));
  config.draft = DrawDraft(random, config.context * config.num_seqs);
  config.verify_nodes = random.OneIn(16) ? random.Between(65, 80) : random.Between(1, 16);
  config.num_families = DrawFamilies(random, config.scale);
  // At least a page of it where the context has one, so that there is something to share.
  config.shared_tokens = random.Between(std::min(page, config.context), config.context);
  config.pool_pages = DrawPoolPages(random, config);
  config.num_batches = config.scale == ConfigScale::kSmall ? 3 : 2;
  config.max_query_tokens = std::max<int64_t>({48, config.verify_nodes, config.draft.branches});
  config.work = {.query_tile = TokenCount(random.Between(1, 16)),
                 .split = kKeyTile * random.Between(1, is_long ? 32 : 4),
                 .num_workers = static_cast<int32_t>(random.Between(1, 12))};
  config.uses_threads = is_long || random.OneIn(16);
  config.runs_attention = config.scale == ConfigScale::kSmall && random.OneIn(12);
  config.work.exact = !random.OneIn(3);
  config.work.tile_cost = static_cast<int32_t>(random.Between(1, 6));
  config.work.from_both_ends = random.OneIn(2);
  config.work.enough_workers =
      random.OneIn(2) ? 0 : static_cast<int32_t>(random.Between(1, config.work.num_workers));
  return config;
}

std::string ToString(const RandomConfig& config) {
  return fmt::format(
      "seed {}: page_size {}, context {}, branches {}, steps {}, nodes {}, num_seqs {}, bucket {}, "
      "families {} share {} tokens, pool {} pages, query_tile {}, split {}, workers {}, "
      "tile_cost {}, enough {}{}{}",
      config.seed, config.page_size, config.context, config.draft.branches, config.draft.steps,
      config.verify_nodes, config.num_seqs, config.bucket_seqs, config.num_families,
      config.shared_tokens, config.pool_pages, config.work.query_tile, config.work.split,
      config.work.num_workers, config.work.tile_cost, config.work.enough_workers,
      config.work.from_both_ends ? ", from both ends" : "", config.uses_threads ? ", threads" : "");
}

void Coverage::Add(const RandomConfig& config, const Facts& facts) {
  ++num_configs_;
  for (size_t i = 0; i < kNumFacts; ++i) facts_[i] += facts[i] ? 1 : 0;
  ++page_sizes_[static_cast<size_t>(config.page_size.raw())];
  ++branches_[static_cast<size_t>(config.draft.branches)];
  ++steps_[static_cast<size_t>(config.draft.steps)];
}

std::vector<Coverage::Line> Coverage::Lines() const {
  std::vector<Line> lines = {{"configurations", num_configs_, 10'000}};
  for (const FactRule& rule : kFactRules) {
    lines.push_back({rule.what, facts_[rule.fact], rule.at_least});
  }
  const auto distinct = std::count_if(page_sizes_.begin(), page_sizes_.end(),
                                      [](int64_t count) { return count > 0; });
  lines.push_back({"distinct page sizes", distinct, 100});
  for (size_t page_size : {1, 2, 3, 16, 61, 64, 128, 256}) {
    lines.push_back({fmt::format("page size {}", page_size), page_sizes_[page_size], 100});
  }
  for (size_t n = 1; n <= 8; ++n) {
    lines.push_back({fmt::format("branches {}", n), branches_[n], 200});
  }
  for (size_t n = 1; n <= 8; ++n) {
    lines.push_back({fmt::format("steps {}", n), steps_[n], 200});
  }
  return lines;
}

std::string Coverage::Table() const {
  std::string table = fmt::format("{:<36}{:>8}{:>10}\n", "coverage", "count", "at least");
  for (const Line& line : Lines()) {
    table += fmt::format("{:<36}{:>8}{:>10}\n", line.what, line.count, line.at_least);
  }
  return table;
}

std::string Coverage::Missing() const {
  std::string missing;
  for (const Line& line : Lines()) {
    if (line.count >= line.at_least) continue;
    missing += fmt::format("{}: {} of {}\n", line.what, line.count, line.at_least);
  }
  return missing;
}

}  // namespace quire::testing
