#include "http/sse.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/error_message.h"

namespace quire {
namespace {

// The events of a stream that comes in pieces of `step` bytes, as "type:data".
std::vector<std::string> Events(std::string_view stream, size_t step) {
  SseParser parser;
  std::vector<std::string> events;
  const auto keep = [&](const SseEvent& event) { events.push_back(event.type + ":" + event.data); };
  for (size_t at = 0; at < stream.size(); at += step) parser.Feed(stream.substr(at, step), keep);
  return events;
}

TEST(SseTest, DataIsFramedLineByLine) {
  EXPECT_EQ(SseData("{}"), "data: {}\n\n");
  EXPECT_EQ(SseData(""), "data: \n\n");
  EXPECT_EQ(SseData("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
}

TEST(SseTest, TypesAreWrittenWhereTheyAreOthersThanMessage) {
  EXPECT_EQ(SseText({.data = "a\nb"}), SseData("a\nb"));
  EXPECT_EQ(SseText({.type = "ping", .data = "{}"}), "event: ping\ndata: {}\n\n");
}

TEST(SseTest, WhatIsWrittenIsReadBackHoweverItIsCut) {
  const std::string stream = SseData("{\"x\": 1}") + std::string(kSsePing) + SseData("two\nlines") +
                             SseData("") + SseData("[DONE]");
  const std::vector<std::string> expected = {"message:{\"x\": 1}", "message:two\nlines",
                                             "message:", "message:[DONE]"};
  for (size_t step = 1; step <= stream.size(); ++step) EXPECT_EQ(Events(stream, step), expected);
}

TEST(SseTest, EveryLineEndIsUnderstood) {
  const std::vector<std::string> expected = {"message:a\nb", "message:c"};
  for (const char* stream : {"data: a\ndata: b\n\ndata: c\n\n", "data: a\rdata: b\r\rdata: c\r\r",
                             "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n"}) {
    EXPECT_EQ(Events(stream, 1), expected);
    EXPECT_EQ(Events(stream, 100), expected);
  }
}

TEST(SseTest, TheStandardsSmallPrint) {
  EXPECT_EQ(Events("\xef\xbb\xbf"
                   "data:x\n\n",
                   1),
            std::vector<std::string>{"message:x"});
  EXPECT_EQ(Events("event: e\ndata:  x\nid: 7\n: note\n\n", 3), std::vector<std::string>{"e: x"});
  EXPECT_EQ(Events("data\n\n", 9), std::vector<std::string>{"message:"});
  EXPECT_EQ(Events("event: e\n\ndata: x\n\n", 9), std::vector<std::string>{"message:x"});
  EXPECT_EQ(Events("data: unfinished\n", 9), std::vector<std::string>{});
}

TEST(SseTest, AnEventThatIsTooLongIsRefused) {
  SseParser parser(10);
  const auto ignore = [](const SseEvent&) {};
  for (int i = 0; i < 100; ++i) parser.Feed("data: 1\n\n", ignore);
  EXPECT_EQ(testing::ErrorMessage(ErrorCode::kCapacityExceeded,
                                  [&] {
                                    parser.Feed("data: 12", ignore);
                                    parser.Feed("345", ignore);
                                  }),
            "event stream: an event of more than 10 bytes, which is the most allowed");
}

}  // namespace
}  // namespace quire
