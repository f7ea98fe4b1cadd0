// What several ranks are held to: two sequences, which have the bits that one rank gives them. For tests of
// ranks of any kind.
#ifndef QUIRE_RUNNER_RANK_CASES_H_
#define QUIRE_RUNNER_RANK_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/tensor_view.h"
#include "device/collective.h"
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

inline std::vector<std::shared_ptr<Collective>> Shared(
    std::vector<std::unique_ptr<Collective>> ranks) {
  return {std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end())};
}

// A rank's end of a group, which breaks in its n-th gather or exchange.
class BreakingRank final : public Collective {
 public:
  BreakingRank(std::unique_ptr<Collective> rank, int calls)
      : rank_(std::move(rank)), left_(calls) {}

  int32_t rank() const override { return rank_->rank(); }
  int32_t size() const override { return rank_->size(); }
  void AllGather(TensorView whole, std::span<const Share> shares) override {
    Require(--left_ > 0, "a memory error");
    rank_->AllGather(whole, shares);
  }
  void AllReduceOr(std::span<uint32_t> words) override { rank_->AllReduceOr(words); }
  void FetchRows(ConstTensorView rows, std::span<const RowPart> parts, TensorView taken) override {
    Require(--left_ > 0, "a memory error");
    rank_->FetchRows(rows, parts, taken);
  }
  void Broadcast(std::vector<std::byte>& message) override { rank_->Broadcast(message); }
  void WaitForAll() override { rank_->WaitForAll(); }
  void Fail(const std::string& reason) noexcept override { rank_->Fail(reason); }
  void ThrowIfFailed() const override { rank_->ThrowIfFailed(); }

 private:
  const std::unique_ptr<Collective> rank_;
  int left_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_RANK_CASES_H_
