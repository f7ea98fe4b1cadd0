// The whole server: who may ask, what goes wrong, and how it ends.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "serve/server_testing.h"

namespace quire::testing {
namespace {

TEST_F(ServerTest, IsNotReadyBeforeTheModelIs) {
  server_.emplace(Options());
  HttpResponse health = Ask("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body)["status"], "loading");
  EXPECT_EQ(ErrorOf(Post("/v1/chat/completions", Chat(1))),
            "503 service_unavailable_error null: the model is being loaded");
  EXPECT_EQ(Ask("GET", "/metrics").status, 200);
  EXPECT_EQ(Ask("GET", "/stats").status, 200);
  engine_.emplace(*runner_, SchedulerOptions());
  text_.emplace(*engine_, model_);
  server_->SetReady(*text_);
  health = Ask("GET", "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(json::parse(health.body)["status"], "ok");
}

TEST_F(ServerTest, AClientThatGoesAwayCancelsItsRequest) {
  Start();
  runner_->pause = std::chrono::milliseconds(2);
  int num_pieces = 0;
  LeaveStream([&](std::string_view) { return ++num_pieces == 3; });
  EXPECT_TRUE(AllPagesReturned());
  EXPECT_LT(engine_->counters().output_tokens, 350);
}

TEST_F(ServerTest, AClientThatGoesAwayBeforeTheFirstTokenCancelsToo) {
  Start();
  runner_->is_held = true;
  LeaveStream([](std::string_view piece) { return piece.find("ping") != std::string_view::npos; });
  EXPECT_TRUE(AllPagesReturned());
  EXPECT_EQ(engine_->counters().output_tokens, 1);  // of the step that was held
}

TEST_F(ServerTest, AFullQueueIs429WithATimeToRetry) {
  Start(Options(), {.max_waiting = 1});
  runner_->is_held = true;
  std::thread runs([&] { Post("/v1/chat/completions", Chat(5)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running == 1; }));
  std::thread waits([&] { Post("/v1/chat/completions", Chat(5)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().waiting == 1; }));
  const HttpResponse refused = Post("/v1/chat/completions", Chat(5));
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_TRUE(refused.headers.Find("Retry-After").has_value());
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "queue_full");
  runner_->is_held = false;
  runs.join();
  waits.join();
  EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200);
}

TEST_F(ServerTest, AFailedStepFailsItsRequestsAndTheServerLivesOn) {
  Start();
  runner_->fake().FailStep(3, "a check failed");
  EXPECT_EQ(
      ErrorOf(Post("/v1/chat/completions", Chat(20))),
      R"(500 server_error "step_failed": the server failed to compute the answer: a check failed)");
  EXPECT_EQ(Post("/v1/chat/completions", Chat(20)).status, 200);
  runner_->fake().FailStep(runner_->fake().num_steps() + 5, "another");
  const std::vector<std::string> data = Stream("/v1/chat/completions", Chat(20, true));
  EXPECT_EQ(json::parse(data.back())["error"]["message"],
            "the server failed to compute the answer: another");
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  EXPECT_TRUE(AllPagesReturned());
}

TEST_F(ServerTest, ASequenceWithAFaultFailsItsRequestAlone) {
  Start();
  const json ill_prompt = {5, 6, 7};
  runner_->fake().PoisonToken(6);
  const auto complete = [](const json& prompt, bool stream) {
    return json{{"prompt", prompt}, {"max_tokens", 20}, {"stream", stream}, {"ignore_eos", true}};
  };
  runner_->is_held = true;
  HttpResponse ill;
  std::thread fails([&] { ill = Post("/v1/completions", complete(ill_prompt, false)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running == 1; }));
  HttpResponse well;
  std::thread runs([&] { well = Post("/v1/completions", complete({5, 8, 9}, false)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().requests_added == 2; }));
  runner_->is_held = false;
  fails.join();
  runs.join();
  EXPECT_EQ(ErrorOf(ill),
            R"(500 server_error "step_failed": the server failed to compute the answer: )"
            "request 1, answer 0: logits that are not finite behind 3 tokens");
  EXPECT_EQ(well.status, 200) << well.body;
  const std::vector<std::string> data = Stream("/v1/completions", complete(ill_prompt, true));
  EXPECT_EQ(json::parse(data.back())["error"]["message"],
            "the server failed to compute the answer: request 3, answer 0: logits that are not "
            "finite behind 3 tokens");
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  EXPECT_TRUE(AllPagesReturned());
}

TEST_F(ServerTest, ARequestThatTakesTooLongIs408) {
  ServerOptions options = Options();
  options.service.completions.request_timeout = std::chrono::milliseconds(30);
  Start(std::move(options));
  runner_->pause = std::chrono::milliseconds(5);
  const HttpResponse late = Post("/v1/chat/completions", Chat(350));
  EXPECT_EQ(late.status, 408);
  EXPECT_EQ(late.headers.Find("X-Should-Retry"), "false");
  json patient = Chat(350);
  patient["timeout"] = 60;  // more than the server grants
  EXPECT_EQ(Post("/v1/chat/completions", patient).status, 408);
}

TEST_F(ServerTest, ARequestMaySayHowLongItMayTake) {
  Start();
  runner_->pause = std::chrono::milliseconds(5);
  json request = Chat(350);
  request["timeout"] = 0.03;
  EXPECT_EQ(Post("/v1/chat/completions", request).status, 408);
  request = Chat(5);
  request["timeout"] = 600;
  EXPECT_EQ(Post("/v1/chat/completions", request).status, 200);
}

TEST_F(ServerTest, AskForAKeyWhereThereIsOne) {
  ServerOptions options = Options();
  options.service.api_keys = {"first-key", "second-key"};
  Start(std::move(options));
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  EXPECT_EQ(Ask("GET", "/").status, 200);
  for (const char* path : {"/metrics", "/stats", "/server_info", "/v1/models"}) {
    const HttpResponse refused = Ask("GET", path);
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_EQ(refused.headers.Find("WWW-Authenticate"), "Bearer");
  }
  EXPECT_EQ(json::parse(Post("/v1/completions", {{"prompt", "x"}}).body)["error"]["code"],
            "invalid_api_key");
  for (const char* key : {"first-key", "second-key"}) {
    EXPECT_EQ(
        Ask("GET", "/v1/models", "", {{"Authorization", fmt::format("Bearer {}", key)}}).status,
        200);
  }
  for (const char* scheme : {"bearer first-key", "BEARER first-key", "bEarer second-key"}) {
    EXPECT_EQ(Ask("GET", "/v1/models", "", {{"Authorization", scheme}}).status, 200) << scheme;
  }
  for (const char* bad :
       {"Bearer First-key", "Bearer first-ke", "Bearer first-key2", "Bearer ", "first-key"}) {
    EXPECT_EQ(Ask("GET", "/v1/models", "", {{"Authorization", bad}}).status, 401) << bad;
  }
}

TEST_F(ServerTest, RequestIdsAreEchoedOrMade) {
  Start();
  EXPECT_EQ(Ask("GET", "/health", "", {{"X-Request-Id", "my-id.7"}}).headers.Find("X-Request-Id"),
            "my-id.7");
  const HttpResponse made = Ask("GET", "/health", "", {{"X-Request-Id", "no spaces, please"}});
  EXPECT_TRUE(made.headers.Find("X-Request-Id").value_or("").starts_with("req-"));
  EXPECT_TRUE(Ask("GET", "/nowhere").headers.Find("X-Request-Id").has_value());
}

TEST_F(ServerTest, OtherOriginsMayAskIfTheyAreAllowed) {
  Start();
  EXPECT_FALSE(Ask("GET", "/health").headers.Find("Access-Control-Allow-Origin").has_value());
  EXPECT_EQ(Ask("OPTIONS", "/v1/models").status, 405);
  server_.reset();
  ServerOptions options = Options();
  options.service.origins.cors_origin = "*";
  options.service.api_keys = {"key"};
  server_.emplace(std::move(options));
  server_->SetReady(*text_);
  const HttpResponse preflight = Ask("OPTIONS", "/v1/chat/completions");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.Find("Access-Control-Allow-Origin"), "*");
  EXPECT_NE(preflight.headers.Find("Access-Control-Allow-Headers")->find("Authorization"),
            std::string_view::npos);
  const HttpResponse own = Ask("OPTIONS", "/v1/chat/completions", "",
                               {{"Access-Control-Request-Headers", "authorization, x-own-header"}});
  EXPECT_EQ(own.headers.Find("Access-Control-Allow-Headers"), "authorization, x-own-header");
  EXPECT_EQ(Ask("GET", "/v1/models").headers.Find("Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(Ask("GET", "/tokenize").headers.Find("Allow"), "POST, OPTIONS");
}

TEST_F(ServerTest, PagesOfOtherSitesMayNotUseALoopbackServer) {
  Start();
  const std::string own = server_->endpoint();
  EXPECT_EQ(Ask("POST", "/v1/chat/completions", Chat(1).dump(), {{"Origin", own}}).status, 200);
  EXPECT_EQ(
      ErrorOf(Ask("POST", "/v1/chat/completions", Chat(1).dump(),
                  {{"Origin", "https://evil.example"}})),
      "403 authentication_error null: Origin: expected this server's own or the --cors-origin, "
      "got \"https://evil.example\"");
  EXPECT_EQ(Ask("OPTIONS", "/v1/models", "", {{"Origin", "https://evil.example"}}).status, 403);
  EXPECT_EQ(engine_->counters().requests_added, 1);
  server_.reset();
  ServerOptions options = Options();
  options.service.origins.cors_origin = "https://chat.example";
  server_.emplace(std::move(options));
  server_->SetReady(*text_);
  const HttpResponse allowed =
      Ask("OPTIONS", "/v1/models", "", {{"Origin", "https://chat.example"}});
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.headers.Find("Access-Control-Allow-Origin"), "https://chat.example");
  EXPECT_EQ(Ask("OPTIONS", "/v1/models", "", {{"Origin", "https://evil.example"}}).status, 403);
}

TEST_F(ServerTest, HealthSaysSoWhenAStepHangs) {
  ServerOptions options = Options();
  options.service.step_timeout = std::chrono::milliseconds(20);
  Start(std::move(options));
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  runner_->is_held = true;
  std::thread client([&] { EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200); });
  EXPECT_TRUE(Eventually([&] { return Ask("GET", "/health").status == 503; }));
  EXPECT_EQ(json::parse(Ask("GET", "/health").body)["status"], "hanging");
  runner_->is_held = false;
  client.join();
  EXPECT_TRUE(Eventually([&] { return Ask("GET", "/health").status == 200; }));
  EXPECT_NE(Ask("GET", "/metrics").body.find("quire:seconds_since_last_step{"), std::string::npos);
}

TEST_F(ServerTest, UnknownFieldsMayBeIgnoredAndAreToldOfOnce) {
  Start();
  json request = Chat(2);
  request["extra_thing"] = 7;
  request["messages"][0]["other"] = true;
  EXPECT_EQ(Post("/v1/chat/completions", request).status, 400);
  server_.reset();
  ServerOptions options = Options();
  options.ignore_unknown_fields = true;
  auto messages = std::make_shared<std::vector<std::string>>();
  options.on_message = [messages](std::string_view text) { messages->emplace_back(text); };
  server_.emplace(std::move(options));
  server_->SetReady(*text_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Post("/v1/chat/completions", request).status, 200);
  server_.reset();
  EXPECT_EQ(*messages, (std::vector<std::string>{"messages[0].other: an unknown field is ignored",
                                                 "extra_thing: an unknown field is ignored"}));
}

TEST_F(ServerTest, TheAccessLogSaysWhyAndHowMuch) {
  ServerOptions options = Options();
  auto records = std::make_shared<std::vector<AccessRecord>>();
  options.http.on_access = [records](const AccessRecord& record) { records->push_back(record); };
  server_.emplace(std::move(options));
  engine_.emplace(*runner_, SchedulerOptions());
  text_.emplace(*engine_, model_);
  server_->SetReady(*text_);
  Post("/v1/completions", {{"prompt", 7}});
  Post("/v1/chat/completions", Chat(5));
  Stream("/v1/chat/completions", Chat(4, true));
  server_.reset();
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ(
      (*records)[0].error,
      "prompt: expected a string, an array of strings, of token ids, or of such arrays, got 7");
  for (size_t i = 1; i < 3; ++i) {
    std::map<std::string, double> values((*records)[i].values.begin(), (*records)[i].values.end());
    EXPECT_GT(values["prompt_tokens"], 0);
    EXPECT_EQ(values["output_tokens"], i == 1 ? 5 : 4);
    EXPECT_EQ(values["cached_tokens"], i == 1 ? 0 : values["prompt_tokens"] - 1);
    EXPECT_GT(values["first_token_seconds"], 0);
  }
}

TEST_F(ServerTest, TellsOfItsWorkWhileThereIsSome) {
  ServerOptions options = Options();
  options.status_interval = std::chrono::milliseconds(5);
  std::atomic<int> num_lines = 0;
  options.on_message = [&](std::string_view text) {
    if (text.starts_with("status: 1 running, 0 waiting, ")) ++num_lines;
  };
  Start(std::move(options));
  runner_->is_held = true;
  std::thread client([&] { EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200); });
  EXPECT_TRUE(Eventually([&] { return num_lines >= 2; }));
  runner_->is_held = false;
  client.join();
  server_.reset();
}

// ---- The end ----

TEST_F(ServerTest, WhenStoppedItLetsOpenAnswersEnd) {
  Start();
  runner_->pause = std::chrono::milliseconds(3);
  std::vector<std::string> data;
  std::thread client([&] { data = Stream("/v1/chat/completions", Chat(100, true)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().output_tokens >= 3; }));
  runner_->is_held = true;
  server_->Stop();
  // It listens still, and says that it takes nothing new.
  EXPECT_EQ(json::parse(Ask("GET", "/health").body)["status"], "draining");
  EXPECT_EQ(Post("/v1/chat/completions", Chat(1)).status, 503);
  runner_->is_held = false;
  server_->Wait();
  client.join();
  ASSERT_FALSE(data.empty());
  EXPECT_EQ(data.back(), "[DONE]");
  EXPECT_EQ(engine_->counters().output_tokens, 100);
}

TEST_F(ServerTest, WhenStoppedItWaitsNoLongerThanItShould) {
  ServerOptions options = Options();
  options.drain_timeout = std::chrono::milliseconds(20);
  Start(std::move(options));
  runner_->pause = std::chrono::milliseconds(20);
  std::vector<std::string> data;
  std::thread client([&] { data = Stream("/v1/chat/completions", Chat(380, true)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().output_tokens >= 1; }));
  server_->Stop();
  server_->Wait();
  client.join();
  ASSERT_FALSE(data.empty());
  // Cut off, and told so.
  EXPECT_EQ(json::parse(data.back())["error"]["code"], "cancelled");
  EXPECT_LT(engine_->counters().output_tokens, 380);
}

TEST_F(ServerTest, GoesOnlyWhenTheEngineOwesItNothing) {
  Start();
  runner_->is_held = true;
  std::thread client(
      [&] { EXPECT_THROW(Ask("POST", "/v1/chat/completions", Chat(100).dump()), Error); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running > 0; }));
  // The step that is held has a last event to tell of, wherever the server is then.
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    runner_->is_held = false;
  });
  server_.reset();
  EXPECT_FALSE(runner_->is_held);
  release.join();
  client.join();
  EXPECT_TRUE(AllPagesReturned());
}

TEST_F(ServerTest, WhenStoppedTwiceItEndsNow) {
  Start();
  runner_->pause = std::chrono::milliseconds(20);
  std::thread client([&] {
    try {
      Ask("POST", "/v1/chat/completions", Chat(380).dump());
      ADD_FAILURE() << "expected no answer";
    } catch (const Error&) {
    }
  });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().output_tokens >= 1; }));
  server_->Stop();
  server_->Stop();
  server_->Wait();
  client.join();
  EXPECT_TRUE(AllPagesReturned());
}

TEST_F(ServerTest, ASignalEndsAnIdleServer) {
  Start();
  server_->StopOnSignals();
  EXPECT_EQ(Ask("GET", "/health").status, 200);  // the signals are handled by now
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  server_->Wait();
}

TEST_F(ServerTest, OnceItsEngineHasFailedItSaysSo) {
  Start();
  runner_->is_held = true;
  HttpResponse open;
  std::thread client([&] { open = Post("/v1/chat/completions", Chat(100)); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running > 0; }));
  Request request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 5;
  engine_->Submit(request, [](const TokenEvent&) { throw std::runtime_error("a bug"); });
  runner_->is_held = false;
  client.join();
  EXPECT_EQ(ErrorOf(open),
            R"(500 server_error "step_failed": the server failed to compute the answer: a bug)");
  EXPECT_EQ(ErrorOf(Post("/v1/chat/completions", Chat(1))),
            "503 service_unavailable_error null: the engine has failed: a bug");
  const HttpResponse health = Ask("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(json::parse(health.body), json({{"status", "failed"}, {"reason", "a bug"}}));
  EXPECT_EQ(Ask("GET", "/metrics").status, 200);
  server_->Stop();  // and there is nothing that it would wait for
  server_->Wait();
}

TEST_F(ServerTest, BodiesThatDoNotFitTogetherAreAskedToComeAgain) {
  ServerOptions options = Options();
  options.http.max_body_bytes = 1000;
  options.http.max_total_body_bytes = 1000;
  Start(std::move(options));
  const json large = {{"content", std::string(900, 'x')}};
  // A request that has begun to answer has given its body back.
  runner_->is_held = true;
  json chat = Chat(5);
  chat["messages"][0]["content"] = std::string(200, 'x');
  chat["user"] = std::string(600, 'u');
  std::thread client([&] { EXPECT_EQ(Post("/v1/chat/completions", chat).status, 200); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running == 1; }));
  EXPECT_EQ(Post("/tokenize", large).status, 200);
  runner_->is_held = false;
  client.join();

  // One that is being sent has not.
  asio::io_context io;
  asio::ip::tcp::socket sending(io);
  sending.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server_->port())});
  asio::write(sending,
              asio::buffer(std::string_view("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                                            "Content-Length: 1000\r\n\r\n")));
  asio::write(sending, asio::buffer(std::string(950, ' ')));
  HttpResponse refused;
  EXPECT_TRUE(Eventually([&] {
    refused = Post("/tokenize", large);
    return refused.status == 503;
  }));
  EXPECT_TRUE(ErrorOf(refused).starts_with(
      "503 service_unavailable_error null: there is no room for a body of "))
      << ErrorOf(refused);
  EXPECT_TRUE(refused.headers.Find("Retry-After").has_value());
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  sending.close();
  EXPECT_TRUE(Eventually([&] { return Post("/tokenize", large).status == 200; }));
}

}  // namespace
}  // namespace quire::testing
