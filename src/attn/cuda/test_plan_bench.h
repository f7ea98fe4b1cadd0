// A machine, the host's plans beside it, and what its rows of pages hold: for tests of what is made on
// a machine, plans here and exports in interop/cuda.
#ifndef QUIRE_ATTN_CUDA_TEST_PLAN_BENCH_H_
#define QUIRE_ATTN_CUDA_TEST_PLAN_BENCH_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attn/cuda/test_machine.h"
#include "attn/plan.h"
#include "attn/plan_storage.h"
#include "attn/sequence_step.h"
#include "attn/test_plans.h"
#include "base/executor.h"
#include "testing/invariants/random_config.h"

namespace quire::cuda {

#define QUIRE_NEEDS_MACHINE() \
  if (!MachineProblem().empty()) GTEST_SKIP() << MachineProblem()

template <class A, class B>
void ExpectSame(const char* what, const A& actual, const B& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const auto at = std::mismatch(actual.begin(), actual.end(), expected.begin()).first;
  EXPECT_TRUE(at == actual.end()) << what << " differs at entry " << at - actual.begin();
}

class PlanBench {
 public:
  explicit PlanBench(const MachineShape& shape);

  TestMachine& machine() { return *machine_; }
  const Plan& host_plan() const { return *plan_; }

  // Each sequence takes the free row that has most of its pages already.
  std::vector<RowUse> ChooseRows(std::span<const SequenceStep> seqs) const;

  void Make(std::span<const SequenceStep> seqs) { Make(seqs, ChooseRows(seqs)); }
  void Make(std::span<const SequenceStep> seqs, const std::vector<RowUse>& uses);

  // The machine's plan of the last Make is the host's.
  void ExpectPlan();

 private:
  // Each sequence's row holds its pages, and every other what it held.
  void ExpectRows(const PlanCopy& copy) const;
  // The copied arrays answer as the host's plan does.
  void ExpectView(const PlanCopy& copy) const;

  MachineShape shape_;
  std::unique_ptr<TestMachine> machine_;
  SerialExecutor executor_;
  ::quire::PlanStorage host_;
  const Plan* plan_ = nullptr;
  std::vector<std::vector<PageId>> rows_;
};

// ---- Steps to make ----

// With the capacity and the work shape of attn/test_plans.h.
MachineShape SmallShape();

// The batches of attn/plan_test.cc, which a machine of SmallShape takes one after the other.
class SmallBatches {
 public:
  SmallBatches();
  SmallBatches(const SmallBatches&) = delete;
  SmallBatches& operator=(const SmallBatches&) = delete;

  const std::vector<std::vector<SequenceStep>>& batches() const { return batches_; }

 private:
  std::vector<PageId> a_, b_, c_;
  std::vector<int32_t> chain_, tree_, worked_;
  std::vector<std::vector<SequenceStep>> batches_;
};

// For every batch that the configuration serves.
MachineShape ShapeOf(const testing::RandomConfig& config, int threads);

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_TEST_PLAN_BENCH_H_
