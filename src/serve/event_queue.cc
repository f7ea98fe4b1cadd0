#include "serve/event_queue.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

namespace quire {

void EventCarrier::Put(std::weak_ptr<EventQueue> queue, QueuedEvent event) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(queue), std::move(event)});
    if (items_.size() > 1) return;
  }
  asio::post(io_, [self = shared_from_this()] { self->HandOut(); });
}

void EventCarrier::HandOut() {
  std::vector<Item> items;
  {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
  }
  for (Item& item : items) {
    const std::shared_ptr<EventQueue> queue = item.queue.lock();
    if (!queue) continue;
    queue->events_.push_back(std::move(item.event));
    queue->timer_.cancel();
  }
}

void EventQueue::Push(size_t prompt, const TextEvent& event) {
  carrier_->Put(weak_from_this(), {prompt, event});
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
