#include "serve/event_queue.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <memory>
#include <vector>

namespace quire {
namespace {

TextEvent EventNumber(int64_t number) {
  TextEvent event;
  event.output_tokens = number;
  return event;
}

TEST(EventQueueTest, EventsOfManyQueuesComeWithOnePost) {
  asio::io_context io;
  const auto carrier = std::make_shared<EventCarrier>(io);
  std::vector<std::shared_ptr<EventQueue>> queues;
  for (int i = 0; i < 64; ++i) queues.push_back(std::make_shared<EventQueue>(carrier));
  for (int64_t number = 1; number <= 2; ++number) {
    for (const auto& queue : queues) queue->Push(0, EventNumber(number));
  }
  EXPECT_EQ(io.poll(), 1u);
  int num_read = 0;
  for (const auto& queue : queues) {
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
          const std::vector<QueuedEvent> events = co_await queue->Next(std::chrono::seconds(10));
          ++num_read;
          EXPECT_EQ(events.size(), 2u);
          for (size_t i = 0; i < events.size(); ++i) {
            EXPECT_EQ(events[i].event.output_tokens, static_cast<int64_t>(i) + 1);
          }
        },
        asio::detached);
  }
  io.restart();
  io.poll();
  EXPECT_EQ(num_read, 64);
}

TEST(EventQueueTest, WhatComesAfterAPostHasOneOfItsOwn) {
  asio::io_context io;
  const auto carrier = std::make_shared<EventCarrier>(io);
  const auto queue = std::make_shared<EventQueue>(carrier);
  int64_t last = 0;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        while (last < 3) {
          for (const QueuedEvent& each : co_await queue->Next(std::chrono::seconds(10))) {
            last = each.event.output_tokens;
          }
        }
      },
      asio::detached);
  for (int64_t number = 1; number <= 3; ++number) {
    queue->Push(0, EventNumber(number));
    io.poll();
    EXPECT_EQ(last, number);
  }
}

// The coroutine and the listener may have gone, or the server, before events are handed out.
TEST(EventQueueTest, EventsOfAQueueThatHasGoneAreDropped) {
  asio::io_context io;
  const auto carrier = std::make_shared<EventCarrier>(io);
  auto gone = std::make_shared<EventQueue>(carrier);
  gone->Push(0, EventNumber(1));
  gone.reset();
  EXPECT_EQ(io.poll(), 1u);
  const auto queue = std::make_shared<EventQueue>(carrier);
  queue->Push(0, EventNumber(1));  // and nobody runs `io` any more
}

}  // namespace
}  // namespace quire
