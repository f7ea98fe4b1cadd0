// TextEvents on their way from the engine's thread to the coroutine that answers with them.
#ifndef QUIRE_SERVE_EVENT_QUEUE_H_
#define QUIRE_SERVE_EVENT_QUEUE_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "textgen/text_engine.h"

namespace quire {

namespace asio = boost::asio;

struct QueuedEvent {
  size_t prompt = 0;  // which of the request's prompts it answers
  TextEvent event = {};
};

class EventQueue;

// Brings the events of all queues to the thread of `io` together: a step of the engine gives one to every
// answer, and waking that thread for each costs the engine more than making it.
class EventCarrier : public std::enable_shared_from_this<EventCarrier> {
 public:
  explicit EventCarrier(asio::io_context& io) : io_(io) {}

  // From any thread. Posts to `io` unless that has yet to come for others.
  void Put(std::weak_ptr<EventQueue> queue, QueuedEvent event);

  asio::io_context& io() { return io_; }

 private:
  struct Item {
    std::weak_ptr<EventQueue> queue;  // which holds the carrier; nobody reads one that has gone
    QueuedEvent event;
  };

  void HandOut();

  asio::io_context& io_;
  std::mutex mutex_;
  std::vector<Item> items_;  // not empty: posted
};

// Shared by the coroutine and the listeners: an event may come when the coroutine has gone.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  explicit EventQueue(std::shared_ptr<EventCarrier> carrier)
      : carrier_(std::move(carrier)), timer_(carrier_->io()) {}

  // From any thread.
  void Push(size_t prompt, const TextEvent& event);

  // By one coroutine on the carrier's `io`: all that has come, once there is something or `patience` has
  // passed. Throws operation_aborted if the coroutine is cancelled.
  asio::awaitable<std::vector<QueuedEvent>> Next(std::chrono::milliseconds patience);

 private:
  friend class EventCarrier;

  const std::shared_ptr<EventCarrier> carrier_;
  // Used on its `io` only.
  asio::steady_timer timer_;
  std::vector<QueuedEvent> events_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_EVENT_QUEUE_H_
