#include "serve/event_queue.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

namespace quire {

void EventQueue::Push(size_t prompt, const TextEvent& event) {
  asio::post(io_, [self = shared_from_this(), queued = QueuedEvent{prompt, event}]() mutable {
    self->events_.push_back(std::move(queued));
    self->timer_.cancel();
  });
}

asio::awaitable<std::vector<QueuedEvent>> EventQueue::Next(std::chrono::milliseconds patience) {
  if (events_.empty()) {
    timer_.expires_after(patience);
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) {
      throw boost::system::system_error(asio::error::operation_aborted);
    }
  }
  co_return std::exchange(events_, {});
}

}  // namespace quire
