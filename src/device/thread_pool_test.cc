#include "device/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

TEST(ThreadPoolTest, EveryIndexRunsOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      pool.Run(count, [&](int64_t i) { calls[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& n : calls) EXPECT_EQ(n.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsInARowLoseNothing) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int loop = 0; loop < 2000; ++loop) {
    pool.Run(3, [&](int64_t i) { sum.fetch_add(i + 1); });
  }
  EXPECT_EQ(sum.load(), 2000 * 6);
}

TEST(ThreadPoolTest, ALoopRunsOnAllThreadsAfterAPauseToo) {
  ThreadPool pool(ThreadPool::DefaultThreads());
  for (int loop = 0; loop < 10; ++loop) {
    // Longer than threads look for work before they sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> arrived{0};
    pool.Run(pool.num_threads(), [&](int64_t) {
      ++arrived;
      while (arrived < pool.num_threads()) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), pool.num_threads());
  }
}

TEST(ThreadPoolTest, AnExceptionComesBackAndThePoolLivesOn) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  EXPECT_THROW(pool.Run(100,
                        [&](int64_t i) {
                          calls.fetch_add(1);
                          if (i == 17) throw std::runtime_error("seventeen");
                        }),
               std::runtime_error);
  EXPECT_EQ(calls.load(), 100);
  pool.Run(5, [&](int64_t) { calls.fetch_add(1); });
  EXPECT_EQ(calls.load(), 105);
}

TEST(ThreadPoolTest, ANumberOfThreadsThatCannotBeIsRefused) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(ThreadPool::kMaxThreads + 1), Error);
}

}  // namespace
}  // namespace quire
