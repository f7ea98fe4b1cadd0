// Work that takes too long for the thread that serves every connection.
#ifndef QUIRE_SERVE_ON_WORKERS_H_
#define QUIRE_SERVE_ON_WORKERS_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <type_traits>

namespace quire {

namespace asio = boost::asio;

// Calls `work` on one of `workers`, and goes on where it was awaited with what it returns or throws.
// If the caller is cancelled meanwhile, `work` is finished all the same, and the caller's next
// co_await throws: a signal passed on to the worker would reach into a coroutine that runs on another
// thread, which ends the process now and then.
template <typename Work>
asio::awaitable<std::invoke_result_t<Work>> RunOnWorkers(asio::thread_pool& workers, Work work) {
  auto task = [&work]() -> asio::awaitable<std::invoke_result_t<Work>> { co_return work(); };
  co_return co_await asio::co_spawn(
      workers, task, asio::bind_cancellation_slot(asio::cancellation_slot(), asio::use_awaitable));
}

}  // namespace quire

#endif  // QUIRE_SERVE_ON_WORKERS_H_
