// What several ranks are held to: two sequences, which have the bits that one rank gives them. For tests of
// ranks of any kind.
#ifndef QUIRE_RUNNER_RANK_CASES_H_
#define QUIRE_RUNNER_RANK_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/executor.h"
#include "base/group_threads.h"
#include "base/tensor_view.h"
#include "device/collective.h"
#include "runner/memory_plan.h"
#include "runner/runner_cases.h"
#include "runner/runner_options.h"
#include "testing/step_jobs.h"

namespace quire {

inline const std::filesystem::path kHfFixtures =
    std::filesystem::path(QUIRE_RUNNER_TESTDATA) / "hf";

inline std::vector<std::string> FixtureNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kHfFixtures)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

inline RunnerOptions OptionsOfRanks(int32_t tp_size, int32_t ep_size = 1) {
  return {.page_size = PageSize(4),
          .context = TokenCount(64),
          .max_seqs = 2,
          .max_step_tokens = TokenCount(16),
          .tp_size = tp_size,
          .ep_size = ep_size};
}

// Two sequences, of which the second joins while the first is at its prompt.
inline std::vector<testing::JobReport> RunTwo(Runner& runner) {
  std::vector<testing::Job> jobs = {MakeJob(runner, 1, 25, 7),
                                    MakeJob(runner, 2, 11, kWholePrompt)};
  jobs[1].first_step = 2;
  return testing::RunJobs(runner, jobs, 3);
}

inline void ExpectSame(const std::vector<testing::JobReport>& reports,
                       const std::vector<testing::JobReport>& expected, const std::string& what) {
  ASSERT_EQ(reports.size(), expected.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(testing::Difference(reports[i], expected[i]), "") << what << ", sequence " << i;
  }
}

// The plan of each rank, as that rank makes it. What others say of it in theirs is the same.
inline std::vector<MemoryPlan> PlansOfEach(
    RunnerOptions options, const std::function<MemoryPlan(const RunnerOptions&)>& plan_of) {
  std::vector<MemoryPlan> plans;
  for (options.rank = 0; options.rank < options.num_ranks(); ++options.rank) {
    plans.push_back(plan_of(options));
  }
  for (const MemoryPlan& plan : plans) {
    for (size_t i = 0; i < plans.size(); ++i) {
      EXPECT_EQ(plan.ranks.at(i).weights, plans[i].weights) << "rank " << i;
      EXPECT_EQ(plan.ranks.at(i).arena, plans[i].arena()) << "rank " << i;
    }
  }
  return plans;
}

inline std::vector<ByteOffset> ArenasOf(const std::vector<MemoryPlan>& plans) {
  std::vector<ByteOffset> arenas;
  for (const MemoryPlan& plan : plans) arenas.push_back(plan.arena());
  return arenas;
}

// The message of the error that loses the device, which fn() is to throw; "" if it throws none.
inline std::string DeviceErrorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const DeviceError& error) {
    EXPECT_TRUE(error.is_sticky());
    return error.what();
  }
  return "";
}

template <class EachRunner>
std::vector<Runner*> PointersTo(const std::vector<std::unique_ptr<EachRunner>>& runners) {
  std::vector<Runner*> pointers;
  for (const auto& runner : runners) pointers.push_back(runner.get());
  return pointers;
}

// What the others do in a step of one.
enum class Others { kNothing, kTheSame };

// One of several groups as a runner of its own. Others that do the same have the same pages, in pools of theirs.
class OneOfGroups final : public Runner {
 public:
  OneOfGroups(std::vector<Runner*> runners, size_t number, Others others)
      : runners_(std::move(runners)),
        number_(number),
        others_(others),
        thrown_(runners_.size()),
        results_(runners_.size()),
        threads_(runners_.size()) {}

  const RunnerLimits& limits() const override { return runners_[number_]->limits(); }
  void Submit(const StepBatch& batch) override {
    const auto submit = [&](size_t i) {
      const bool computes = i == number_ || others_ == Others::kTheSame;
      runners_[i]->Submit(computes ? batch : StepBatch());
    };
    try {
      OnAll(submit);
    } catch (const DeviceError&) {
      EndSubmitted();
      throw;
    }
  }
  const StepResult& Collect() override {
    OnAll([&](size_t i) { results_[i] = &runners_[i]->Collect(); });
    return *results_[number_];
  }

 private:
  // Those that have begun a step that others have not read the batch until they are collected.
  void EndSubmitted() {
    threads_.Run([&](size_t i) {
      if (thrown_[i]) return;
      try {
        runners_[i]->Collect();
      } catch (const DeviceError&) {  // the same
      }
    });
  }
  void OnAll(FunctionRef<void(size_t)> fn) {
    threads_.Run([&](size_t i) {
      thrown_[i] = nullptr;
      try {
        fn(i);
      } catch (...) {
        thrown_[i] = std::current_exception();
      }
    });
    for (const std::exception_ptr& each : thrown_) {
      if (each) std::rethrow_exception(each);
    }
  }

  const std::vector<Runner*> runners_;
  const size_t number_;
  const Others others_;
  std::vector<std::exception_ptr> thrown_;
  std::vector<const StepResult*> results_;
  GroupThreads threads_;
};

inline std::vector<std::shared_ptr<Collective>> Shared(
    std::vector<std::unique_ptr<Collective>> ranks) {
  return {std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end())};
}

// A rank's end of a group, which breaks in its n-th gather or exchange.
class BreakingRank final : public Collective {
 public:
  // Without a number it works until it is told to break.
  explicit BreakingRank(std::unique_ptr<Collective> rank, int calls = INT_MAX)
      : rank_(std::move(rank)), left_(calls) {}
  // While no rank makes a call.
  void BreakIn(int calls) { left_ = calls; }

  int32_t rank() const override { return rank_->rank(); }
  int32_t size() const override { return rank_->size(); }
  void AllGather(TensorView whole, std::span<const Share> shares) override {
    Require(--left_ > 0, "a memory error");
    rank_->AllGather(whole, shares);
  }
  void AllReduceOr(std::span<uint32_t> words) override { rank_->AllReduceOr(words); }
  void FetchRows(ConstTensorView rows, std::span<const GivenRows> given,
                 std::span<const RowPart> parts, TensorView taken) override {
    Require(--left_ > 0, "a memory error");
    rank_->FetchRows(rows, given, parts, taken);
  }
  void Broadcast(std::vector<std::byte>& message) override { rank_->Broadcast(message); }
  void Send(int32_t to, std::span<const std::byte> message) override { rank_->Send(to, message); }
  void Receive(int32_t from, std::vector<std::byte>& message, Waits waits) override {
    rank_->Receive(from, message, waits);
  }
  void WaitForAll() override { rank_->WaitForAll(); }
  void Fail(const std::string& reason) noexcept override { rank_->Fail(reason); }
  void ThrowIfFailed() const override { rank_->ThrowIfFailed(); }

 private:
  const std::unique_ptr<Collective> rank_;
  int left_;
};

// Puts one that works so far in the place of `rank`.
inline BreakingRank& MakeBreaking(std::unique_ptr<Collective>& rank) {
  auto breaking = std::make_unique<BreakingRank>(std::move(rank));
  BreakingRank& made = *breaking;
  rank = std::move(breaking);
  return made;
}

}  // namespace quire

#endif  // QUIRE_RUNNER_RANK_CASES_H_
