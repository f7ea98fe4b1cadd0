#include "serve/api_error.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

TEST(ApiErrorTest, IsShapedAsOpenaisClientsExpect) {
  EXPECT_EQ(BadField("messages[2].content", "messages[2].content: missing").ToJson(),
            R"({"error":{"message":"messages[2].content: missing","type":"invalid_request_error",)"
            R"("param":"messages[2].content","code":null}})");
  EXPECT_EQ(QueueFull().ToJson(),
            R"({"error":{"message":"the queue is full; try again later",)"
            R"("type":"rate_limit_error","param":null,"code":"queue_full"}})");
}

TEST(ApiErrorTest, IsShapedAsAnthropicsClientsExpectBelowTheirPath) {
  EXPECT_EQ(
      BadField("top_k", "top_k: missing").ToJson(ErrorForm::kAnthropic),
      R"({"type":"error","error":{"type":"invalid_request_error","message":"top_k: missing"}})");
  const auto type_of = [](int status) {
    const std::string json = ErrorOfStatus(status, "").ToJson(ErrorForm::kAnthropic);
    const size_t begin = json.rfind("\"type\":\"") + 8;
    return json.substr(begin, json.find('"', begin) - begin);
  };
  EXPECT_EQ(type_of(401), "authentication_error");
  EXPECT_EQ(type_of(403), "permission_error");
  EXPECT_EQ(type_of(404), "not_found_error");
  EXPECT_EQ(type_of(408), "timeout_error");
  EXPECT_EQ(type_of(413), "request_too_large");
  EXPECT_EQ(type_of(429), "rate_limit_error");
  EXPECT_EQ(type_of(500), "api_error");
  EXPECT_EQ(type_of(503), "overloaded_error");
  EXPECT_EQ(ErrorFormOf("/v1/messages"), ErrorForm::kAnthropic);
  EXPECT_EQ(ErrorFormOf("/v1/messages/count_tokens"), ErrorForm::kAnthropic);
  EXPECT_EQ(ErrorFormOf("/v1/messagesx"), ErrorForm::kOpenAi);
  EXPECT_EQ(ErrorFormOf("/v1/responses"), ErrorForm::kOpenAi);
}

TEST(ApiErrorTest, IsUtf8WhateverTheMessage) {
  EXPECT_EQ(ErrorOfStatus(400, "a\xff\"").ToJson(),
            "{\"error\":{\"message\":\"a\xef\xbf\xbd\\\"\",\"type\":\"invalid_request_error\","
            "\"param\":null,\"code\":null}}");
}

TEST(ApiErrorTest, StatusesHaveTheirTypes) {
  EXPECT_EQ(ErrorOfStatus(401, "").type(), "authentication_error");
  EXPECT_EQ(ErrorOfStatus(404, "").type(), "not_found_error");
  EXPECT_EQ(ErrorOfStatus(405, "").type(), "invalid_request_error");
  EXPECT_EQ(ErrorOfStatus(408, "").type(), "timeout_error");
  EXPECT_EQ(ErrorOfStatus(413, "").type(), "invalid_request_error");
  EXPECT_EQ(ErrorOfStatus(429, "").type(), "rate_limit_error");
  EXPECT_EQ(ErrorOfStatus(500, "").type(), "server_error");
  EXPECT_EQ(ErrorOfStatus(503, "").type(), "service_unavailable_error");
  EXPECT_EQ(BadApiKey("no key").status(), 401);
  EXPECT_EQ(BadApiKey("no key").code(), "invalid_api_key");
}

TEST(ApiErrorTest, AnUnknownModelIsNamedBesideTheServedOne) {
  const ApiError error = ModelNotFound("gpt-4", "quire");
  EXPECT_EQ(error.status(), 404);
  EXPECT_EQ(error.code(), "model_not_found");
  EXPECT_EQ(error.param(), "model");
  EXPECT_STREQ(error.what(), "model: expected \"quire\", got \"gpt-4\"");
}

TEST(ApiErrorTest, ALongPromptIsCountedBesideTheContext) {
  const ApiError error = ContextExceeded(5000, 4096);
  EXPECT_EQ(error.status(), 400);
  EXPECT_EQ(error.code(), "context_length_exceeded");
  EXPECT_STREQ(error.what(),
               "the prompt has 5000 tokens, which leaves no room for an answer in this model's "
               "context length of 4096 tokens");
}

TEST(ApiErrorTest, TheEnginesErrorsNameTheirField) {
  const auto param = [](const char* message) {
    return FromError(Error(ErrorCode::kInvalidArgument, "{}", message)).param();
  };
  EXPECT_EQ(param("n: expected 1..4, got 9"), "n");
  EXPECT_EQ(param("logit_bias[0].token: expected 0..9, got 10"), "logit_bias[0].token");
  EXPECT_EQ(param("stop token: expected 0..9, got 10"), "");
  EXPECT_EQ(param("Conversation roles must alternate"), "");
  EXPECT_EQ(FromError(Error(ErrorCode::kCapacityExceeded, "too much")).status(), 400);
}

TEST(ApiErrorTest, EndsThatAreNoErrorsAreNotMadeOne) {
  EXPECT_EQ(FromFinish(FinishReason::kCancelled, "").status(), 503);
  EXPECT_EQ(FromFinish(FinishReason::kDeadline, "").status(), 408);
  EXPECT_STREQ(FromFinish(FinishReason::kFailed, "why").what(),
               "the server failed to compute the answer: why");
  for (const FinishReason reason :
       {FinishReason::kNone, FinishReason::kStop, FinishReason::kLength}) {
    EXPECT_THROW((void)FromFinish(reason, ""), InternalError);
  }
}

}  // namespace
}  // namespace quire
