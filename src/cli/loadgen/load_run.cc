#include "cli/loadgen/load_run.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

#include "base/error.h"

namespace quire::cli {
namespace {

std::chrono::steady_clock::duration Duration(double seconds) {
  // A day at most: more would not fit.
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 86400.0)));
}

// Everything of one run; its coroutines all run on one thread.
class LoadLoop {
 public:
  LoadLoop(asio::io_context& io, const LoadShape& shape, const RunClock& clock,
           const LoadHooks& hooks)
      : io_(io), shape_(shape), clock_(clock), hooks_(hooks), tick_(io), arrival_(io) {
    result_.shape = shape;
  }

  LoadResult Run() {
    if (shape_.rate > 0) {
      Spawn(Arrive());
    } else {
      const int64_t workers = std::min(shape_.concurrency, shape_.max_requests);
      for (int64_t i = 0; i < workers; ++i) Spawn(Work());
    }
    StartTick();
    io_.restart();
    io_.run();
    if (error_) std::rethrow_exception(error_);
    hooks_.on_tick(progress_);
    result_.was_stopped = is_stopped_;
    return std::move(result_);
  }

 private:
  void Spawn(asio::awaitable<void> work) {
    ++num_spawned_;
    asio::co_spawn(io_, std::move(work), [this](const std::exception_ptr& error) {
      if (error) Fail(error);
      if (--num_spawned_ == 0) tick_.cancel();
    });
  }

  void Fail(const std::exception_ptr& error) {
    if (!error_) error_ = error;
    Stop();
  }

  void Stop() {
    if (is_stopped_) return;
    is_stopped_ = true;
    arrival_.cancel();
    hooks_.stop();
  }

  void StartTick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](const boost::system::error_code& cancelled) {
      if (cancelled || num_spawned_ == 0) return;
      try {
        if (hooks_.on_tick(progress_)) Stop();
      } catch (...) {
        Fail(std::current_exception());
      }
      StartTick();
    });
  }

  bool MayBegin(double now) const {
    return !is_stopped_ && progress_.num_begun < shape_.max_requests && now < shape_.max_seconds;
  }

  // It counts as begun at once, not only when its coroutine first runs.
  asio::awaitable<void> Send(double begin) {
    RequestRecord record{.index = progress_.num_begun++, .begin = begin};
    result_.records.emplace_back();
    return Await(std::move(record));
  }

  asio::awaitable<void> Await(RequestRecord record) {
    const auto index = static_cast<size_t>(record.index);
    ++num_running_;
    result_.peak_concurrency = std::max(result_.peak_concurrency, num_running_);
    record = co_await hooks_.send(std::move(record));
    --num_running_;
    ++progress_.num_done;
    if (IsFailure(record.outcome)) ++progress_.num_failed;
    result_.seconds = std::max(result_.seconds, record.end);
    result_.records[index] = std::move(record);
  }

  asio::awaitable<void> Work() {
    while (MayBegin(clock_.Now())) co_await Send(clock_.Now());
  }

  asio::awaitable<void> Arrive() {
    double due = hooks_.next_gap();
    while (MayBegin(due)) {
      arrival_.expires_after(Duration(due - clock_.Now()));
      co_await arrival_.async_wait(asio::as_tuple(asio::use_awaitable));
      if (is_stopped_) break;
      Spawn(Send(due));
      due += hooks_.next_gap();
    }
  }

  asio::io_context& io_;
  const LoadShape& shape_;
  const RunClock& clock_;
  const LoadHooks& hooks_;
  asio::steady_timer tick_;
  asio::steady_timer arrival_;
  LoadResult result_;
  LoadProgress progress_;
  int64_t num_running_ = 0;
  int64_t num_spawned_ = 0;  // coroutines
  bool is_stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace

LoadResult RunLoad(asio::io_context& io, const LoadShape& shape, const RunClock& clock,
                   const LoadHooks& hooks) {
  Require((shape.concurrency > 0) != (shape.rate > 0),
          "load: expected a concurrency or a rate, got {} and {}", shape.concurrency, shape.rate);
  return LoadLoop(io, shape, clock, hooks).Run();
}

}  // namespace quire::cli
