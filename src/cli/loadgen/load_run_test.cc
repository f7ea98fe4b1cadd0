#include "cli/loadgen/load_run.h"

#include <gtest/gtest.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <set>

#include "base/error.h"

namespace quire::cli {
namespace {

using std::chrono::milliseconds;

// A server that takes some time, or for ever, and counts.
class LoadRunTest : public ::testing::Test {
 protected:
  LoadRunTest() {
    hooks_.send = [this](RequestRecord record) { return Answer(std::move(record)); };
    hooks_.next_gap = [this] { return gap_; };
    hooks_.on_tick = [this](const LoadProgress& progress) {
      last_ = progress;
      return stop_after_ >= 0 && progress.num_begun >= stop_after_;
    };
    hooks_.stop = [this] {
      ++num_stops_;
      for (asio::steady_timer* timer : waiting_) timer->cancel();
    };
  }

  asio::awaitable<RequestRecord> Answer(RequestRecord record) {
    asio::steady_timer timer(io_, takes_);
    waiting_.insert(&timer);
    const auto [cancelled] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    waiting_.erase(&timer);
    if (record.index == throws_at_) throw Error(ErrorCode::kInvalidArgument, "broken");
    if (!cancelled) record.outcome = record.index % 2 == 0 ? Outcome::kOk : Outcome::kTimeout;
    record.end = clock_.Now();
    co_return record;
  }

  LoadResult Run(const LoadShape& shape) { return RunLoad(io_, shape, clock_, hooks_); }

  asio::io_context io_{1};
  RunClock clock_;
  LoadHooks hooks_;
  LoadProgress last_;
  std::set<asio::steady_timer*> waiting_;
  milliseconds takes_{3};
  double gap_ = 0;
  int64_t stop_after_ = -1;
  int64_t throws_at_ = -1;
  int num_stops_ = 0;
};

TEST_F(LoadRunTest, AClosedLoopKeepsSoManyUnderWayAndNoMore) {
  for (const int64_t concurrency : {1, 4, 50}) {
    const LoadResult result = Run({.concurrency = concurrency, .max_requests = 20});
    EXPECT_EQ(result.peak_concurrency, std::min<int64_t>(concurrency, 20));
    ASSERT_EQ(result.records.size(), 20u);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(result.records[i].index, static_cast<int64_t>(i));
      EXPECT_EQ(result.records[i].outcome, i % 2 == 0 ? Outcome::kOk : Outcome::kTimeout);
      EXPECT_LE(result.records[i].end, result.seconds);
      EXPECT_GE(result.records[i].begin, result.records[i == 0 ? 0 : i - 1].begin);
    }
    EXPECT_FALSE(result.was_stopped);
    EXPECT_EQ(last_.num_begun, 20);
    EXPECT_EQ(last_.num_done, 20);
    EXPECT_EQ(last_.num_failed, 10);
  }
}

TEST_F(LoadRunTest, AnOpenLoopWaitsForNoAnswer) {
  takes_ = milliseconds(100'000);
  stop_after_ = 30;  // all of them are under way at once; then they are ended
  const LoadResult result = Run({.rate = 1000, .max_requests = 30});
  EXPECT_EQ(result.peak_concurrency, 30);
  EXPECT_TRUE(result.was_stopped);
}

TEST_F(LoadRunTest, ArrivalsAreDueWhenTheGapsSay) {
  gap_ = 0.002;
  const LoadResult result = Run({.rate = 500, .max_requests = 10});
  ASSERT_EQ(result.records.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(result.records[i].begin, 0.002 * static_cast<double>(i + 1), 1e-9);
    EXPECT_GE(result.records[i].end, result.records[i].begin + 0.003);
  }
}

TEST_F(LoadRunTest, NothingBeginsAfterTheTimeIsUpAndAllIsAwaited) {
  gap_ = 0.01;
  const LoadResult open = Run({.rate = 100, .max_seconds = 0.055});
  EXPECT_EQ(open.records.size(), 5u);
  clock_ = RunClock();
  const LoadResult closed = Run({.concurrency = 2, .max_seconds = 0.05});
  EXPECT_GE(closed.seconds, 0.05);
  for (const RequestRecord& record : closed.records) {
    EXPECT_LT(record.begin, 0.05);
    EXPECT_NE(record.outcome, Outcome::kUnfinished);
  }
}

TEST_F(LoadRunTest, StoppingEndsWhatIsUnderWay) {
  takes_ = milliseconds(100'000);
  stop_after_ = 1;
  const LoadResult result = Run({.concurrency = 3, .max_requests = 100});
  EXPECT_TRUE(result.was_stopped);
  EXPECT_EQ(num_stops_, 1);
  ASSERT_EQ(result.records.size(), 3u);
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.outcome, Outcome::kUnfinished);
  }
  EXPECT_EQ(last_.num_failed, 0);
}

TEST_F(LoadRunTest, WhatAHookThrowsEndsTheRun) {
  throws_at_ = 5;
  EXPECT_THROW(Run({.concurrency = 2, .max_requests = 1000}), Error);
  EXPECT_EQ(num_stops_, 1);
  throws_at_ = -1;
  hooks_.on_tick = [](const LoadProgress&) -> bool {
    throw Error(ErrorCode::kInvalidArgument, "broken");
  };
  takes_ = milliseconds(100'000);
  EXPECT_THROW(Run({.concurrency = 2, .max_requests = 1000}), Error);
}

TEST_F(LoadRunTest, OneOfConcurrencyAndRateIsNeeded) {
  EXPECT_THROW(Run({}), Error);
  EXPECT_THROW(Run({.concurrency = 1, .rate = 1}), Error);
}

}  // namespace
}  // namespace quire::cli
