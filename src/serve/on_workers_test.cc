#include "serve/on_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

namespace quire {
namespace {

TEST(OnWorkersTest, GivesBackWhatTheWorkGives) {
  asio::io_context io;
  Workers workers(1);
  std::string given;
  const auto ask = [&]() -> asio::awaitable<void> {
    given = co_await RunOnWorkers(workers.For(1), [](const std::stop_token& stop) {
      return stop.stop_requested() ? std::string("stopped") : std::string("done");
    });
  };
  asio::co_spawn(io, ask, [](const std::exception_ptr& error) { EXPECT_FALSE(error); });
  io.run();
  EXPECT_EQ(given, "done");
}

TEST(OnWorkersTest, WorkThatNobodyWaitsForIsAskedToStop) {
  asio::io_context io;
  Workers workers(1);
  asio::cancellation_signal gone;
  bool saw_stop = false;
  bool threw = false;
  const auto ask = [&]() -> asio::awaitable<void> {
    co_await RunOnWorkers(workers.For(1), [&](const std::stop_token& stop) {
      asio::post(io, [&] { gone.emit(asio::cancellation_type::terminal); });
      // Ends by the signal alone; ten seconds fail the test.
      for (int i = 0; i < 10'000 && !stop.stop_requested(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      saw_stop = stop.stop_requested();
      if (saw_stop) throw std::runtime_error("stopped");
      return 0;
    });
  };
  asio::co_spawn(io, ask,
                 asio::bind_cancellation_slot(gone.slot(), [&](const std::exception_ptr& error) {
                   threw = error != nullptr;
                 }));
  io.run();
  EXPECT_TRUE(saw_stop);
  EXPECT_TRUE(threw);
}

TEST(OnWorkersTest, ManyLargeOnesDoNotHoldUpASmallOne) {
  asio::io_context io;
  Workers workers(1);
  std::atomic<bool> small_is_done = false;
  std::atomic<int> num_large = 0;
  const auto large = [&]() -> asio::awaitable<void> {
    co_await RunOnWorkers(workers.For(Workers::kLargeBytes), [&](const std::stop_token&) {
      EXPECT_EQ(++num_large, 1);  // never two at a time
      for (int i = 0; i < 10'000 && !small_is_done; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_TRUE(small_is_done);
      --num_large;
      return 0;
    });
  };
  const auto small = [&]() -> asio::awaitable<void> {
    co_await RunOnWorkers(workers.For(Workers::kLargeBytes - 1), [&](const std::stop_token&) {
      small_is_done = true;
      return 0;
    });
  };
  const auto rethrow = [](const std::exception_ptr& error) { EXPECT_FALSE(error); };
  for (int i = 0; i < 4; ++i) asio::co_spawn(io, large, rethrow);
  asio::co_spawn(io, small, rethrow);
  io.run();
}

}  // namespace
}  // namespace quire
