// Which group a request goes to, and what groups behind one queue share.
#include "engine/scheduler_groups.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "testing/error_message.h"
#include "testing/fake_runner.h"
#include "testing/scheduler_harness.h"

namespace quire::testing {
namespace {

RunnerLimits GroupLimits(int32_t max_seqs = 4) {
  return {.page_size = PageSize(4),
          .pool_pages = PageCount(31),
          .context = TokenCount(100),
          .max_seqs = max_seqs,
          .max_step_tokens = TokenCount(16),
          .max_samples = max_seqs,
          .vocab_size = 1000};
}

// Groups with a fake runner each, which know of pages of their own alone.
class GroupHarness {
 public:
  explicit GroupHarness(const RunnerLimits& limits, size_t num_groups = 2,
                        const SchedulerOptions& options = {})
      : groups_(limits, options, num_groups) {
    for (size_t i = 0; i < num_groups; ++i)
      runners_.push_back(std::make_unique<FakeRunner>(limits));
  }

  std::optional<RequestId> TryAdd(const Request& request) {
    const std::optional<RequestId> id = groups_.Add(request);
    if (id) requests_.emplace(*id, request);
    return id;
  }
  RequestId Add(const Request& request) { return TryAdd(request).value(); }
  RequestId Add(std::vector<int32_t> prompt, int64_t max_tokens = 4) {
    return Add(MakeRequest(std::move(prompt), max_tokens));
  }

  void Step() {
    groups_.Balance();
    for (size_t i = 0; i < groups_.size(); ++i) {
      const StepBatch batch = groups_[i].Schedule(now_, events_);
      if (!batch.sequences.empty()) {
        runners_[i]->Submit(batch);
        groups_[i].PrepareNext();
        groups_[i].Commit(runners_[i]->Collect(), events_);
      }
      groups_[i].CheckInvariants();
    }
    now_ += std::chrono::milliseconds(1);
    for (const TokenEvent& event : events_) Take(event);
    events_.clear();
  }
  void RunAll() {
    for (int i = 0; groups_.HasWork(); ++i) {
      ASSERT_LT(i, 10'000) << "it does not end";
      Step();
    }
  }

  // Where it runs; nullopt if it does not.
  std::optional<size_t> GroupOf(RequestId id) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (const auto& running : groups_[i].Snapshot().running) {
        if (running.request == id) return i;
      }
    }
    return std::nullopt;
  }
  // Where it runs once a step has begun it.
  std::optional<size_t> GroupOfNew(std::vector<int32_t> prompt, int64_t max_tokens = 4) {
    const RequestId id = Add(std::move(prompt), max_tokens);
    Step();
    return GroupOf(id);
  }

  SchedulerGroups& groups() { return groups_; }
  FakeRunner& runner(size_t group) { return *runners_[group]; }
  EngineClock::time_point now() const { return now_; }
  FinishReason finish(RequestId id) const {
    const auto found = ended_.find(id);
    return found == ended_.end() ? FinishReason::kNone : found->second;
  }

 private:
  // Tokens are those that follow from the request alone.
  void Take(const TokenEvent& event) {
    if (event.token != kNoToken) {
      std::vector<int32_t>& history =
          histories_.try_emplace({event.request, event.sample}, requests_.at(event.request).prompt)
              .first->second;
      ASSERT_EQ(event.token, ExpectedToken(history, event.sample, groups_[0].limits().vocab_size));
      history.push_back(event.token);
    }
    if (event.last_of_request) {
      EXPECT_TRUE(ended_.emplace(event.request, event.finish).second) << "it ends twice";
    }
  }

  SchedulerGroups groups_;
  std::vector<std::unique_ptr<FakeRunner>> runners_;
  std::map<RequestId, Request> requests_;
  std::map<std::pair<RequestId, int32_t>, std::vector<int32_t>> histories_;
  std::map<RequestId, FinishReason> ended_;
  std::vector<TokenEvent> events_;
  EngineClock::time_point now_{};
};

std::vector<int32_t> Behind(std::vector<int32_t> prompt, const std::vector<int32_t>& more) {
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

TEST(SchedulerGroups, ARequestGoesToTheGroupWithTheLongestMatch) {
  GroupHarness harness(GroupLimits());
  const RequestId first = harness.Add(Prompt(12, 1)), second = harness.Add(Prompt(12, 2));
  harness.Step();
  EXPECT_EQ(harness.GroupOf(first), 0u);
  EXPECT_EQ(harness.GroupOf(second), 1u);
  harness.RunAll();
  // Though each time the other group has less to do.
  EXPECT_EQ(harness.GroupOfNew(Behind(Prompt(12, 2), Prompt(3, 5)), 20), 1u);
  EXPECT_EQ(harness.GroupOfNew(Behind(Prompt(12, 2), Prompt(3, 6)), 20), 1u);
  EXPECT_EQ(harness.GroupOfNew(Behind(Prompt(12, 1), Prompt(3, 7)), 20), 0u);
  harness.RunAll();
  EXPECT_EQ(harness.groups().counters().cached_tokens, 3 * 12);
}

TEST(SchedulerGroups, OfTwoMatchesTheLongerOneCounts) {
  GroupHarness harness(GroupLimits(1));
  const std::vector<int32_t> branch = Behind(Prompt(4, 1), Prompt(8, 5));
  EXPECT_EQ(harness.GroupOfNew(Prompt(12, 1), 20), 0u);
  EXPECT_EQ(harness.GroupOfNew(branch), 1u);  // the first group is full
  harness.RunAll();
  EXPECT_EQ(harness.GroupOfNew(Behind(branch, {7}), 1), std::nullopt);  // it has ended
  EXPECT_EQ(harness.groups()[1].counters().cached_tokens, 12);
  EXPECT_EQ(harness.GroupOfNew(Behind(Prompt(12, 1), {7}), 2), 0u);
  EXPECT_EQ(harness.groups()[0].counters().cached_tokens, 12);
  harness.RunAll();
}

TEST(SchedulerGroups, ThenToTheOneWithTheLeastWork) {
  GroupHarness harness(GroupLimits());
  EXPECT_EQ(harness.GroupOfNew(Prompt(60, 1)), 0u);  // of which a step has computed 16
  EXPECT_EQ(harness.groups()[0].work(), TokenCount(44));
  EXPECT_EQ(harness.GroupOfNew(Prompt(5, 2), 20), 1u);
  EXPECT_EQ(harness.GroupOfNew(Prompt(5, 3), 20), 1u);
  EXPECT_EQ(harness.groups()[1].work(), TokenCount(2));  // the next token of each
  harness.Step();
  harness.Step();
  EXPECT_EQ(harness.groups()[0].work(), TokenCount(1));
  EXPECT_EQ(harness.GroupOfNew(Prompt(5, 4)), 0u);
  harness.RunAll();
}

TEST(SchedulerGroups, AMatchOfLessThanAPageCountsForNothing) {
  GroupHarness harness(GroupLimits());
  harness.Add(Prompt(9, 1), 1);
  harness.RunAll();
  harness.Add(Prompt(9, 2), 20);  // the first group is as good, and has work from now on
  std::vector<int32_t> alike = Prompt(3, 1);
  EXPECT_EQ(harness.GroupOfNew(Behind(alike, Prompt(9, 4))), 1u);
  harness.RunAll();
}

TEST(SchedulerGroups, PrefixesAreOfOneSaltAndCountOnlyWhereTheyMayBeUsed) {
  GroupHarness harness(GroupLimits());
  harness.Add(Prompt(12, 1), 1);
  harness.RunAll();
  harness.Add(Prompt(9, 2), 20);
  Request request = MakeRequest(Behind(Prompt(12, 1), {5}), 4);
  EXPECT_EQ(harness.groups()[0].num_matching(request), PageCount(3));
  EXPECT_EQ(harness.groups()[1].num_matching(request), PageCount(0));
  request.cache_salt = "another";
  EXPECT_EQ(harness.groups()[0].num_matching(request), PageCount(0));
  request.cache_salt = "";
  request.score_prompt = true;
  EXPECT_EQ(harness.groups()[0].num_matching(request), PageCount(0));
  harness.RunAll();
}

TEST(SchedulerGroups, AGroupThatCanBeginGoesBeforeOneThatHasThePrefix) {
  GroupHarness harness(GroupLimits(1));
  EXPECT_EQ(harness.GroupOfNew(Prompt(12, 1), 20), 0u);
  EXPECT_EQ(harness.GroupOfNew(Behind(Prompt(12, 1), {5})), 1u);
  harness.RunAll();
}

TEST(SchedulerGroups, NobodyWaitsWhileAGroupHasAPlace) {
  GroupHarness harness(GroupLimits(1));
  harness.Add(Prompt(12, 1), 20);
  harness.Add(Prompt(12, 2), 3);
  const RequestId third =
      harness.Add(Behind(Prompt(12, 1), {5}));  // waits for the first, which it matches
  harness.Step();
  EXPECT_EQ(harness.GroupOf(third), std::nullopt);
  EXPECT_EQ(harness.groups()[0].counters().waiting, 1);
  for (int i = 0; i < 3; ++i) harness.Step();
  EXPECT_EQ(harness.GroupOf(third), 1u);
  EXPECT_EQ(harness.groups().counters().waiting, 0);
  harness.RunAll();
  EXPECT_EQ(harness.finish(third), FinishReason::kLength);
}

// Otherwise others would take the pages that it waits for, here and there in turn.
TEST(SchedulerGroups, ARequestThatMovedStaysUntilItsPagesAreThere) {
  GroupHarness harness(GroupLimits(2));
  for (int32_t i = 0; i < 2; ++i) harness.Add(Prompt(80, i), 12);
  for (int i = 0; i < 5; ++i) harness.Step();
  const RequestId large = harness.Add(Prompt(60, 2));  // there are places, and no pages
  harness.Step();
  const bool was_in_first = harness.groups()[0].counters().waiting == 1;
  for (int i = 0; i < 4; ++i) {
    harness.Step();
    EXPECT_EQ(harness.groups()[was_in_first ? 1 : 0].counters().waiting, 1);
    EXPECT_EQ(harness.groups()[was_in_first ? 0 : 1].counters().waiting, 0);
  }
  harness.RunAll();
  EXPECT_EQ(harness.finish(large), FinishReason::kLength);
}

TEST(SchedulerGroups, WhatMovesCanBeCancelledMeanwhileOrBeLateLater) {
  for (const bool cancels : {true, false}) {
    GroupHarness harness(GroupLimits(1));
    harness.Add(Prompt(12, 1), 30);
    harness.Add(Prompt(12, 2), 3);
    Request request = MakeRequest(Prompt(12, 3), 30);
    request.deadline = harness.now() + std::chrono::milliseconds(8);
    const RequestId third = harness.Add(request);
    for (int i = 0; i < 3; ++i) harness.Step();
    EXPECT_EQ(harness.groups()[0].counters().waiting, 1);
    EXPECT_FALSE(harness.groups()[1].HasWork());
    if (cancels) harness.groups().Cancel(third);
    harness.Step();
    EXPECT_EQ(harness.groups()[0].counters().waiting, 0);
    EXPECT_EQ(harness.GroupOf(third), cancels ? std::nullopt : std::optional<size_t>(1));
    for (int i = 0; i < 5; ++i) harness.Step();
    EXPECT_EQ(harness.finish(third), cancels ? FinishReason::kCancelled : FinishReason::kDeadline);
    harness.RunAll();
  }
}

TEST(SchedulerGroups, TheQueueIsOneWithItsLimitAndItsNumbers) {
  GroupHarness harness(GroupLimits(1), 2, {.max_waiting = 3});
  for (RequestId id = 1; id <= 2; ++id) EXPECT_EQ(harness.Add(Prompt(5, 1), 20), id);
  harness.Step();
  for (RequestId id = 3; id <= 5; ++id) EXPECT_EQ(harness.Add(Prompt(5, 2), 2), id);
  EXPECT_EQ(harness.TryAdd(MakeRequest(Prompt(5, 2), 2)), std::nullopt);
  EXPECT_EQ(harness.groups().counters().requests_refused, 1);
  EXPECT_EQ(harness.groups().counters().waiting, 3);
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { harness.Add(Prompt(0)); }),
            "prompt: expected at least one token, got none");
  harness.RunAll();
  EXPECT_EQ(harness.groups().counters().answers_finished, 5);
}

TEST(SchedulerGroups, CountersAndPagesAreThoseOfAllGroups) {
  GroupHarness harness(GroupLimits(), 3);
  for (int32_t i = 0; i < 3; ++i) harness.Add(Prompt(8, i), 20);
  harness.Step();
  const SchedulerSnapshot snapshot = harness.groups().Snapshot();
  EXPECT_EQ(snapshot.running.size(), 3u);
  EXPECT_EQ(snapshot.counters.running, 3);
  EXPECT_EQ(snapshot.counters.pages_total, 90);
  EXPECT_EQ(snapshot.pages_free + snapshot.pages_cached + snapshot.pages_in_use, PageCount(90));
  EXPECT_FALSE(harness.groups().EmptyCache());
  harness.RunAll();
  EXPECT_GT(harness.groups().counters().pages_cached, 0);
  EXPECT_TRUE(harness.groups().EmptyCache());
  EXPECT_EQ(harness.groups().counters().pages_cached, 0);
}

// Uneven work, prefix hits, preemption and cancellation in pools that are too small for all that runs.
TEST(SchedulerGroups, AnyMixOfRequestsIsAnsweredAsEachAlone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t end) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
    };
    GroupHarness harness(GroupLimits(), 1 + static_cast<size_t>(below(4)));
    std::vector<RequestId> ids;
    for (int step = 0; step < 150; ++step) {
      if (below(3) == 0) {
        Request request = MakeRequest(Behind(Prompt(below(30), static_cast<int32_t>(below(3))),
                                             Prompt(1 + below(12), static_cast<int32_t>(step))),
                                      1 + below(40));
        request.num_samples = 1 + static_cast<int32_t>(below(3));
        ids.push_back(harness.Add(request));
      }
      if (!ids.empty() && below(10) == 0) {
        harness.groups().Cancel(ids[static_cast<size_t>(below(std::ssize(ids)))]);
      }
      harness.Step();
    }
    harness.RunAll();
    for (const RequestId id : ids) EXPECT_NE(harness.finish(id), FinishReason::kNone) << id;
  }
}

}  // namespace
}  // namespace quire::testing
