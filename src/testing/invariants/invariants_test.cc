// The invariants of paging, planning, exporting and storing, on ten thousand random configurations.
//
//   I1   slot of position p = page row[p / P] * P + p % P, in lists, plans and exports
//   I2   a page is free, or held: by one sequence, or by several at the same place of their rows,
//        or by the prefix tree; free + used = all
//   I3   the scratch page is nobody's
//   I4   flat indices = the block table, expanded, for every rule
//   I5   a step at its own capacity = the same step in a padded bucket, whatever ran there before
//   I6   every buffer has a bound that the host knows: written inside, refused beyond
//   I7   draft step i of a branch sees committed + i + 1 keys: the prefix and its own drafts
//   I9   pieces of work partition what is to be done
//   I10  a store's rows do not depend on its layout, however they are written and moved
//   I11  sparse attention that chooses everything = dense attention
//   I12  what sparse attention chooses and gives does not depend on pages, layouts and workers
//
// Seeds are fixed, a hundred to a test. A failure prints the seed and the configuration, and ends
// its test: configurations share nothing, so to debug seed 4711 alone run
//   --gtest_filter='*seeds_4700_to_4799'
// where it is then the last one. The coverage table is printed at the end, and asserted when all
// seeds have run.
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <vector>

#include "attn/capacity.h"
#include "attn/plan_storage.h"
#include "attn/sequence_step.h"
#include "base/executor.h"
#include "base/format.h"
#include "device/thread_pool.h"
#include "testing/invariants/draft_checks.h"
#include "testing/invariants/export_checks.h"
#include "testing/invariants/plan_checks.h"
#include "testing/invariants/prefill_checks.h"
#include "testing/invariants/random_config.h"
#include "testing/invariants/serving.h"
#include "testing/invariants/sparse_checks.h"
#include "testing/invariants/store_checks.h"
#include "testing/invariants/trial.h"

namespace quire::testing {
namespace {

constexpr uint64_t kFirstSeed = 0;
constexpr int kNumGroups = 100;
constexpr int kSeedsPerGroup = 100;

void CheckBatch(const Trial& trial, PlanStorage& bucket, bool is_first) {
  CheckExports(trial);
  QUIRE_RETURN_IF_FAILED();
  CheckPlans(trial, bucket);
  QUIRE_RETURN_IF_FAILED();
  CheckPageRanges(trial);
  const std::vector<SequenceStep> steps = trial.CommittedSteps();
  const StepCapacity drafts =
      is_first ? CapacityOf(steps, trial.config.page_size, trial.bucket.pool_pages) : trial.bucket;
  CheckDraftExports(trial, drafts);
  QUIRE_RETURN_IF_FAILED();
  if (!is_first) return;
  CheckDraftLevels(trial, bucket);
  CheckExportRefusals(trial);
  CheckDraftRefusals(trial);
  QUIRE_RETURN_IF_FAILED();
  CheckPlanRefusals(trial, bucket);
  QUIRE_RETURN_IF_FAILED();
  CheckPrefillPlans(trial);
  QUIRE_RETURN_IF_FAILED();
  if (trial.config.runs_attention) {
    CheckAttention(trial);
    CheckSparseAttention(trial);
  }
  CheckStores(trial);
}

void CheckConfig(const RandomConfig& config, Executor& executor, Facts& facts) {
  Serving serving(config, facts);
  Random random(config.seed * 2);
  const StepCapacity capacity = config.BucketCapacity();
  // Here and not where it would show: a plan's own buffers have no red zones.
  ASSERT_GE(PageTableWidth(capacity).raw() * config.page_size.raw(),
            config.context + config.TreeNodes());
  PlanStorage bucket(capacity, config.work);
  for (int32_t i = 0; i < config.num_batches; ++i) {
    SCOPED_TRACE(fmt::format("batch {}", i));
    const Batch batch = serving.Next();
    serving.CheckPages();
    ASSERT_GE(batch.num_real, 1) << "one sequence always fits";
    const Trial trial{.config = config,
                      .batch = batch,
                      .eager = CapacityOf(batch.seqs, config.page_size, capacity.pool_pages),
                      .bucket = capacity,
                      .executor = executor,
                      .facts = facts,
                      .random = random};
    CheckBatch(trial, bucket, i == 0);
    QUIRE_RETURN_IF_FAILED();
  }
  serving.End();
}

class InvariantsTest : public ::testing::TestWithParam<int> {
 public:
  static uint64_t FirstSeed(int group) {
    return kFirstSeed + static_cast<uint64_t>(group) * kSeedsPerGroup;
  }

 protected:
  // The coverage of a part of the seeds says nothing.
  static void TearDownTestSuite() {
    std::cout << coverage_.Table() << std::flush;
    if (coverage_.num_configs() == kNumGroups * kSeedsPerGroup) {
      EXPECT_EQ(coverage_.Missing(), "");
    }
  }

  static inline Coverage coverage_;
};

TEST_P(InvariantsTest, Hold) {
  SerialExecutor serial;
  ThreadPool threads(2);
  for (int i = 0; i < kSeedsPerGroup; ++i) {
    const RandomConfig config = DrawConfig(FirstSeed(GetParam()) + Index(i));
    SCOPED_TRACE(ToString(config));
    Facts facts;
    if (config.uses_threads) facts.set(kThreads);
    try {
      CheckConfig(config, config.uses_threads ? static_cast<Executor&>(threads) : serial, facts);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) return;
    coverage_.Add(config, facts);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, InvariantsTest, ::testing::Range(0, kNumGroups),
                         [](const ::testing::TestParamInfo<int>& group) {
                           const uint64_t first = InvariantsTest::FirstSeed(group.param);
                           return fmt::format("seeds_{}_to_{}", first, first + kSeedsPerGroup - 1);
                         });

}  // namespace
}  // namespace quire::testing
