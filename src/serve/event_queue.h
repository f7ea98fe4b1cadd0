// TextEvents on their way from the engine's thread to the coroutine that answers with them.
#ifndef QUIRE_SERVE_EVENT_QUEUE_H_
#define QUIRE_SERVE_EVENT_QUEUE_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "textgen/text_engine.h"

namespace quire {

namespace asio = boost::asio;

struct QueuedEvent {
  size_t prompt = 0;  // which of the request's prompts it answers
  TextEvent event = {};
};

// Shared by the coroutine and the listeners: an event may come when the coroutine has gone.
class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  explicit EventQueue(asio::io_context& io) : io_(io), timer_(io) {}

  // From any thread.
  void Push(size_t prompt, const TextEvent& event);

  // By one coroutine on `io`: all that has come, once there is something or `patience` has passed.
  // Throws operation_aborted if the coroutine is cancelled.
  asio::awaitable<std::vector<QueuedEvent>> Next(std::chrono::milliseconds patience);

 private:
  asio::io_context& io_;
  // Used on `io` only.
  asio::steady_timer timer_;
  std::vector<QueuedEvent> events_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_EVENT_QUEUE_H_
