#include "cli/loadgen/load_answer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire::cli {
namespace {

// Feeds an answer and keeps the record.
struct Answered {
  explicit Answered(Endpoint endpoint = Endpoint::kChat) : answer(endpoint, record) {}

  // Returns whether the answer is still of use.
  bool Event(const std::string& data, double now) {
    try {
      answer.Feed("data: " + data + "\n\n", now);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  bool Text(double now) { return Event(R"({"choices":[{"delta":{"content":"x"}}]})", now); }

  RequestRecord record;
  LoadAnswer answer;
};

TEST(LoadAnswerTest, TextIsNotedWhenItComes) {
  Answered a;
  EXPECT_TRUE(a.Event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", 1));
  EXPECT_TRUE(a.Text(2));
  EXPECT_TRUE(a.Event(R"({"choices":[{"delta":{"reasoning_content":"y"}}]})", 3));
  EXPECT_TRUE(a.Event(R"({"choices":[{"delta":{},"finish_reason":"length"}]})", 4));
  EXPECT_TRUE(a.Event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,)"
                      R"("prompt_tokens_details":{"cached_tokens":3}}})",
                      5));
  EXPECT_EQ(a.record.outcome, Outcome::kUnfinished);
  EXPECT_TRUE(a.Event("[DONE]", 6));
  a.answer.Finish("text/event-stream", 7);
  EXPECT_EQ(a.record.outcome, Outcome::kOk);
  EXPECT_EQ(a.record.deltas, (std::vector<double>{2, 3}));
  EXPECT_EQ(a.record.end, 6);
  EXPECT_EQ(a.record.prompt_tokens, 7);
  EXPECT_EQ(a.record.OutputTokens(), 5);
  EXPECT_EQ(a.record.cached_tokens, 3);
  EXPECT_EQ(a.record.finish_reason, "length");
  EXPECT_EQ(OutcomeName(a.record), "ok");
}

TEST(LoadAnswerTest, CompletionsHaveTextAndPingsAreSkipped) {
  Answered a(Endpoint::kCompletions);
  a.answer.Feed(": ping\n\ndata: {\"choices\":[{\"te", 1);
  a.answer.Feed("xt\":\"x\",\"finish_reason\":null}],\"usage\":null}\n\ndata: [DO", 2);
  a.answer.Feed("NE]\n\n", 3);
  EXPECT_EQ(a.record.outcome, Outcome::kOk);
  EXPECT_EQ(a.record.deltas, (std::vector<double>{2}));
  EXPECT_EQ(a.record.OutputTokens(), 1);  // no usage: as many as there were pieces
}

TEST(LoadAnswerTest, AnEndWithoutDoneIsAnEarlyEnd) {
  Answered clean;
  clean.Text(1);
  clean.answer.Finish("text/event-stream", 2);
  EXPECT_EQ(clean.record.outcome, Outcome::kEarlyEnd);
  Answered broken;
  broken.Text(1);
  broken.answer.Break("the answer is cut short", 2);
  EXPECT_EQ(broken.record.outcome, Outcome::kEarlyEnd);
  Answered empty;
  empty.answer.Finish("text/event-stream", 2);
  EXPECT_EQ(empty.record.outcome, Outcome::kEarlyEnd);
}

TEST(LoadAnswerTest, ABreakAfterDoneChangesNothing) {
  Answered a;
  a.Text(1);
  a.Event("[DONE]", 2);
  a.answer.Break("reset", 3);
  EXPECT_EQ(a.record.outcome, Outcome::kOk);
  EXPECT_EQ(a.record.end, 2);
}

TEST(LoadAnswerTest, NoConnectionIsItsOwnKind) {
  Answered a;
  a.answer.Break("cannot connect", 1);
  EXPECT_EQ(OutcomeName(a.record), "connection");
  EXPECT_EQ(a.record.message, "cannot connect");
}

TEST(LoadAnswerTest, AStatusIsRefusedWithTheServersMessage) {
  Answered a;
  a.answer.Refuse(429, R"({"error":{"message":"queue full"}})", 1);
  EXPECT_EQ(OutcomeName(a.record), "http 429");
  EXPECT_EQ(a.record.message, "status 429: queue full");
  Answered plain;
  plain.answer.Refuse(502, "bad\xff gateway", 1);
  EXPECT_EQ(plain.record.message, "status 502: \"bad\xef\xbf\xbd gateway\"");
}

TEST(LoadAnswerTest, AnErrorInTheStreamIsAServersError) {
  Answered a;
  a.Text(1);
  EXPECT_FALSE(a.Event(R"({"error":{"message":"out of memory"}})", 2));
  EXPECT_EQ(OutcomeName(a.record), "server error");
  EXPECT_EQ(a.record.message, "out of memory");
}

TEST(LoadAnswerTest, WhatIsNotAnAnswerIsMalformed) {
  for (const char* data :
       {"{", "7", "[]", "{}", R"({"choices":7})", R"({"choices":[7]})",
        R"({"choices":[{"delta":7}]})", R"({"choices":[{"delta":{"content":7}}]})",
        R"({"choices":[],"usage":{"prompt_tokens":-1}})", R"({"choices":[],"usage":[]})",
        R"({"choices":[{"finish_reason":1}]})", "[DONE]"}) {
    Answered a;
    EXPECT_FALSE(a.Event(data, 1)) << data;
    EXPECT_EQ(a.record.outcome, Outcome::kMalformed) << data;
    EXPECT_NE(a.record.message, "") << data;
  }
  Answered json;
  json.answer.Feed(R"({"choices":[{"message":{"content":"not streamed"}}]})", 1);
  json.answer.Finish("application/json", 2);
  EXPECT_EQ(json.record.outcome, Outcome::kMalformed);
  EXPECT_NE(json.record.message.find("application/json"), std::string::npos);
}

}  // namespace
}  // namespace quire::cli
