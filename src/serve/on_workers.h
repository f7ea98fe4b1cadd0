// Work that takes too long for the thread that serves every connection.
#ifndef QUIRE_SERVE_ON_WORKERS_H_
#define QUIRE_SERVE_ON_WORKERS_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstddef>
#include <stop_token>
#include <type_traits>

namespace quire {

namespace asio = boost::asio;

namespace internal {

// While this lives, a cancellation asks `stop` to stop. `slot` is a coroutine's own, which nothing else
// uses while it waits for a worker.
class StopOnCancellation {
 public:
  StopOnCancellation(asio::cancellation_slot slot, std::stop_source stop) : slot_(slot) {
    if (!slot_.is_connected()) return;
    slot_.assign([stop](asio::cancellation_type) mutable { stop.request_stop(); });
  }
  ~StopOnCancellation() {
    if (slot_.is_connected()) slot_.clear();
  }
  StopOnCancellation(const StopOnCancellation&) = delete;
  StopOnCancellation& operator=(const StopOnCancellation&) = delete;

 private:
  asio::cancellation_slot slot_;
};

}  // namespace internal

// Calls `work` with a stop token on one of `workers`, and goes on where it was awaited with what it
// returns or throws. If the caller is cancelled meanwhile, `work` is asked to stop, and awaited all the
// same; then the caller's next co_await throws. A signal passed on to the worker would reach into a
// coroutine that runs on another thread, which ends the process now and then.
template <typename Work>
asio::awaitable<std::invoke_result_t<Work, std::stop_token>> RunOnWorkers(
    asio::thread_pool& workers, Work work) {
  using Result = std::invoke_result_t<Work, std::stop_token>;
  std::stop_source stop;
  const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
  const internal::StopOnCancellation watch(state.slot(), stop);
  auto task = [&work, &stop]() -> asio::awaitable<Result> { co_return work(stop.get_token()); };
  co_return co_await asio::co_spawn(
      workers, task, asio::bind_cancellation_slot(asio::cancellation_slot(), asio::use_awaitable));
}

// Threads for requests. Large ones have a thread of their own: however many come, the others do not
// wait for them; and they are worked on one after another, which bounds the memory that it takes.
class Workers {
 public:
  static constexpr size_t kLargeBytes = size_t{256} << 10;

  explicit Workers(int num_threads) : small_(static_cast<size_t>(num_threads)), large_(1) {}

  // Where a request with a body of so many bytes is worked on.
  asio::thread_pool& For(size_t body_bytes) { return body_bytes < kLargeBytes ? small_ : large_; }

 private:
  asio::thread_pool small_;
  asio::thread_pool large_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_ON_WORKERS_H_
