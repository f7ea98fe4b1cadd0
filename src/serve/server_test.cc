// The whole server over loopback, with a fake runner behind the engine.
#include "serve/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "http/client.h"
#include "http/sse.h"
#include "io/test_files.h"
#include "testing/fake_runner.h"

namespace quire::testing {
namespace {

using nlohmann::json;

// A runner that waits before every step, so that an answer takes long enough to be interrupted.
class SlowRunner final : public Runner {
 public:
  explicit SlowRunner(const RunnerLimits& limits) : runner_(limits) {}

  const RunnerLimits& limits() const override { return runner_.limits(); }
  void Submit(const StepBatch& batch) override {
    while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(pause.load());
    runner_.Submit(batch);
  }
  const StepResult& Collect() override { return runner_.Collect(); }

  std::atomic<std::chrono::milliseconds> pause{std::chrono::milliseconds(0)};
  std::atomic<bool> is_held = false;
  FakeRunner& fake() { return runner_; }

 private:
  FakeRunner runner_;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy(std::filesystem::path(QUIRE_TOKENIZERS "/deepseek_v3") / name,
                            dir_.path() / name);
    }
    dir_.Write("chat_template.jinja",
               "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    model_ = OpenTextModel(dir_.path());
    model_.generation.eos_tokens.clear();  // the fake runner draws any token
    runner_.emplace(RunnerLimits{.page_size = PageSize(4),
                                 .pool_pages = PageCount(401),
                                 .context = TokenCount(400),
                                 .max_seqs = 4,
                                 .max_step_tokens = TokenCount(64),
                                 .max_samples = 4,
                                 .vocab_size = model_.tokenizer->vocab_size()});
  }

  ~ServerTest() override {
    if (runner_) runner_->is_held = false;
    server_.reset();
  }

  static ServerOptions Options() {
    ServerOptions options;
    options.service.completions.model_name = "test-model";
    options.service.completions.ping_interval = std::chrono::milliseconds(50);
    return options;
  }

  void Start(ServerOptions options = Options(), SchedulerOptions scheduler = {}) {
    options.http.on_access = [this](const AccessRecord& record) {
      if (record.outcome == HttpOutcome::kClientGone) ++num_clients_gone_;
    };
    server_.emplace(std::move(options));
    engine_.emplace(*runner_, scheduler);
    text_.emplace(*engine_, model_);
    server_->SetReady(*text_, R"({"threads": 3})");
  }

  // One request on a connection of its own.
  HttpResponse Ask(const std::string& method, const std::string& path, std::string body = {},
                   HttpHeaders headers = {}, HttpClient::OnPiece on_piece = {}) {
    asio::io_context io;
    HttpClient client(io, {.url = server_->endpoint()});
    HttpClientRequest request{
        .method = method, .path = path, .headers = std::move(headers), .body = std::move(body)};
    std::future<HttpResponse> answer = asio::co_spawn(
        io, client.Request(std::move(request), std::move(on_piece)), asio::use_future);
    io.run();
    return answer.get();
  }
  HttpResponse Post(const std::string& path, const json& body) {
    return Ask("POST", path, body.dump());
  }
  static json Chat(int64_t max_tokens, bool stream = false) {
    return {{"messages", json::array({{{"role", "user"}, {"content", "Hello"}}})},
            {"max_tokens", max_tokens},
            {"stream", stream},
            {"ignore_eos", true}};
  }
  // The data of a stream's events, in order.
  std::vector<std::string> Stream(const std::string& path, const json& body) {
    std::vector<std::string> data;
    SseParser parser;
    const HttpResponse response = Ask("POST", path, body.dump(), {}, [&](std::string_view piece) {
      parser.Feed(piece, [&](const SseEvent& event) { data.push_back(event.data); });
    });
    EXPECT_EQ(response.status, 200) << response.body;
    return data;
  }
  // Waits for the condition, ten seconds at most; whether it holds.
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return condition();
  }
  // Goes away from a stream of 350 tokens at the piece that `is_last` takes. The engine is held from
  // then on until the server has seen it, so that the answer cannot be complete before.
  void LeaveStream(const std::function<bool(std::string_view)>& is_last) {
    struct Gone {};
    EXPECT_THROW(Ask("POST", "/v1/chat/completions", Chat(350, true).dump(), {},
                     [&](std::string_view piece) {
                       if (!is_last(piece)) return;
                       runner_->is_held = true;
                       throw Gone();
                     }),
                 Gone);
    EXPECT_TRUE(Eventually([&] { return num_clients_gone_ > 0; }));
    runner_->is_held = false;
  }
  // Waits until nothing is open, and says whether all pages are free or cached then.
  bool AllPagesReturned() {
    const bool is_idle = Eventually([&] {
      const SchedulerSnapshot snapshot = engine_->Snapshot();
      return snapshot.running.empty() && snapshot.counters.waiting == 0;
    });
    return is_idle && engine_->Snapshot().pages_in_use == PageCount(0);
  }
  static std::string ErrorOf(const HttpResponse& response) {
    const json body = json::parse(response.body);
    return fmt::format("{} {} {}: {}", response.status, body["error"]["type"].get<std::string>(),
                       body["error"]["code"].dump(), body["error"]["message"].get<std::string>());
  }

  const TempDir dir_;
  TextModel model_;
  std::optional<SlowRunner> runner_;
  std::optional<Engine> engine_;
  std::optional<TextEngine> text_;
  std::atomic<int> num_clients_gone_ = 0;
  std::optional<Server> server_;  // goes first
};

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

TEST_F(ServerTest, AStreamIsTheWholeAnswerInPieces) {
  Start();
  const json whole = json::parse(Post("/v1/chat/completions", Chat(30)).body);
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 30);

  json request = Chat(30, true);
  request["stream_options"] = {{"include_usage", true}};
  const std::vector<std::string> data = Stream("/v1/chat/completions", request);
  ASSERT_GT(data.size(), 4u);
  EXPECT_EQ(data.back(), "[DONE]");
  const json usage = json::parse(data[data.size() - 2])["usage"];
  EXPECT_EQ(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  // The same prompt again: all of it but its last token is there.
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"],
            whole["usage"]["prompt_tokens"].get<int>() - 1);
  std::string streamed;
  for (size_t i = 0; i + 2 < data.size(); ++i) {
    const json delta = json::parse(data[i])["choices"][0]["delta"];
    streamed += delta.value("content", "");
  }
  EXPECT_EQ(streamed, text);
}

TEST_F(ServerTest, CompletionsTakeManyPromptsAndSamples) {
  Start();
  const json body = {{"prompt", {"One", "Two", "Three"}},
                     {"n", 2},
                     {"max_tokens", 5},
                     {"ignore_eos", true},
                     {"temperature", 0},
                     {"echo", true}};
  const json answer = json::parse(Post("/v1/completions", body).body);
  ASSERT_EQ(answer["choices"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    const std::string text = answer["choices"][i]["text"];
    EXPECT_TRUE(text.starts_with(body["prompt"][i / 2].get<std::string>())) << text;
  }
  EXPECT_TRUE(AllPagesReturned());
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

TEST_F(ServerTest, PathsAndMethods) {
  Start();
  EXPECT_EQ(ErrorOf(Ask("GET", "/v1/nothing")),
            "404 not_found_error null: /v1/nothing: there is no such path");
  EXPECT_EQ(ErrorOf(Ask("GET", "/v1/completions")),
            "405 invalid_request_error null: /v1/completions: expected the method POST, got GET");
  EXPECT_EQ(Ask("GET", "/v1/completions").headers.Find("Allow"), "POST");
  EXPECT_EQ(Ask("POST", "/v1/models/x", "{}").headers.Find("Allow"), "GET, HEAD");
  const HttpResponse refused = Ask("DELETE", "/health");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.Find("Allow"), "GET, HEAD");
  EXPECT_EQ(Ask("HEAD", "/health").status, 200);
  const HttpResponse page = Ask("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.headers.Find("Content-Security-Policy").has_value());
}

TEST_F(ServerTest, ModelsAreNamed) {
  ServerOptions options = Options();
  options.service.completions.model_name = "maker/model v1";
  Start(std::move(options));
  EXPECT_EQ(json::parse(Ask("GET", "/v1/models").body)["data"][0]["id"], "maker/model v1");
  EXPECT_EQ(json::parse(Ask("GET", "/v1/models/maker%2Fmodel%20v1").body)["id"], "maker/model v1");
  EXPECT_EQ(Ask("GET", "/v1/models/another").status, 404);
  json request = Chat(2);
  request["model"] = "another";
  EXPECT_EQ(json::parse(Post("/v1/chat/completions", request).body)["error"]["code"],
            "model_not_found");
  request["model"] = "maker/model v1";
  EXPECT_EQ(Post("/v1/chat/completions", request).status, 200);
}

TEST_F(ServerTest, APromptBeyondTheContextIsRefusedWithBothCounts) {
  Start();
  std::string words;
  for (int i = 0; i < 500; ++i) words += fmt::format(" {}", i);
  const HttpResponse refused = Post("/v1/completions", {{"prompt", words}});
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const std::string message = error["message"];
  EXPECT_NE(message.find("400"), std::string::npos) << message;
  const json tokens = json::parse(Post("/tokenize", {{"prompt", words}}).body);
  EXPECT_NE(message.find(tokens["count"].dump()), std::string::npos) << message;
}

TEST_F(ServerTest, TextToolsAgree) {
  Start();
  const json tokens = json::parse(Post("/tokenize", {{"content", "Hello there"}}).body);
  const json text = json::parse(Post("/detokenize", {{"tokens", tokens["tokens"]}}).body);
  for (const char* name : {"content", "prompt", "text"}) EXPECT_EQ(text[name], "Hello there");
  EXPECT_EQ(tokens["max_model_len"], 400);
  const json chat = json::parse(Post("/tokenize", {{"messages", Chat(1)["messages"]}}).body);
  const std::string chat_text =
      json::parse(Post("/detokenize", {{"tokens", chat["tokens"]}}).body)["text"];
  EXPECT_EQ(chat_text, "<｜begin▁of▁sentence｜>[user]Hello");
  const json prompt =
      json::parse(Post("/apply-template", {{"messages", Chat(1)["messages"]}}).body);
  EXPECT_EQ(prompt["prompt"], "<｜begin▁of▁sentence｜>[user]Hello");
  EXPECT_EQ(Post("/tokenize", {{"content", 7}}).status, 400);
  const int64_t vocab = model_.tokenizer->vocab_size();
  EXPECT_EQ(ErrorOf(Post("/detokenize", {{"tokens", {1, vocab}}})),
            fmt::format("400 invalid_request_error null: tokens[1]: expected a token of the model, "
                        "0..{}, got {}",
                        vocab - 1, vocab));
}

TEST_F(ServerTest, ALongReplyIsSentAsItIsWritten) {
  Start();
  json tokens = json::array();
  for (int i = 0; i < 60'000; ++i) tokens.push_back(i % 500);
  const HttpResponse reply = Post("/detokenize", {{"tokens", tokens}});
  EXPECT_EQ(reply.headers.Find("Content-Length"), std::nullopt);  // in chunks
  const std::string text = json::parse(reply.body)["content"];
  EXPECT_GT(text.size(), 60'000u);
  const json again =
      json::parse(Post("/tokenize", {{"content", text}, {"with_pieces", true}}).body);
  EXPECT_EQ(again["count"], again["tokens"].size());
  EXPECT_TRUE(Post("/tokenize", {{"content", "a"}}).headers.Find("Content-Length").has_value());
}

TEST_F(ServerTest, TextsHaveALimitInTokens) {
  ServerOptions options = Options();
  options.service.completions.limits.max_text_tokens = 3;
  Start(std::move(options));
  EXPECT_EQ(ErrorOf(Post("/tokenize", {{"content", "1 2 3 4 5"}})),
            "400 invalid_request_error null: the text has more than 3 tokens");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1, 2, 3}}}).status, 200);
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1, 2, 3, 4}}}).status, 400);
}

TEST_F(ServerTest, PromptsOfTokensAreComparedWithTheContextFirst) {
  Start();
  json tokens = json::array();
  for (int i = 0; i < 400; ++i) tokens.push_back(i);
  for (const json& prompt : {tokens, json::array({json::array({1}), tokens})}) {
    EXPECT_EQ(json::parse(Post("/v1/completions", {{"prompt", prompt}}).body)["error"]["code"],
              "context_length_exceeded");
  }
}

TEST_F(ServerTest, GenerateAnswersAsSglangDoes) {
  Start();
  const json params = {{"max_new_tokens", 6}, {"temperature", 0}, {"ignore_eos", true}};
  const json one =
      json::parse(Post("/generate", {{"text", "Hello there"}, {"sampling_params", params}}).body);
  EXPECT_FALSE(one["text"].get<std::string>().empty());
  EXPECT_EQ(one["meta_info"]["completion_tokens"], 6);
  EXPECT_EQ(one["meta_info"]["finish_reason"], json({{"type", "length"}, {"length", 6}}));
  EXPECT_FALSE(one.contains("index"));
  const json ids = json::parse(Post("/tokenize", {{"prompt", "Hello there"}}).body)["tokens"];
  EXPECT_EQ(one["meta_info"]["prompt_tokens"], ids.size());
  const json same =
      json::parse(Post("/generate", {{"input_ids", ids}, {"sampling_params", params}}).body);
  EXPECT_EQ(same["text"], one["text"]);
  EXPECT_EQ(same["meta_info"]["cached_tokens"], ids.size() - 1);
  const json list = json::parse(
      Post("/generate", {{"text", {"Hello there", "You"}}, {"sampling_params", params}}).body);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["text"], one["text"]);
  EXPECT_EQ(list[1]["index"], 1);
  const std::vector<std::string> data =
      Stream("/generate", {{"text", "Hello there"}, {"sampling_params", params}, {"stream", true}});
  ASSERT_GT(data.size(), 2u);
  EXPECT_EQ(data.back(), "[DONE]");
  const json last = json::parse(data[data.size() - 2]);
  EXPECT_EQ(last["text"], one["text"]);  // all of it so far
  EXPECT_EQ(last["meta_info"]["finish_reason"]["type"], "length");
  EXPECT_EQ(json::parse(data[0])["meta_info"]["finish_reason"], nullptr);
  EXPECT_EQ(ErrorOf(Post("/generate", {{"text", "a"}, {"sampling_params", {{"regex", "a*"}}}})),
            "400 invalid_request_error null: sampling_params.regex: expected null (not supported), "
            "got \"a*\"");
  EXPECT_EQ(json::parse(Ask("GET", "/get_model_info").body)["is_generation"], true);
  EXPECT_EQ(json::parse(Ask("GET", "/get_server_info").body)["limits"]["pages"], 400);
}

TEST_F(ServerTest, TheCacheIsFlushedWhenNothingRuns) {
  Start();
  Post("/v1/chat/completions", Chat(5));
  ASSERT_TRUE(AllPagesReturned());
  EXPECT_GT(engine_->Snapshot().pages_cached, PageCount(0));
  runner_->is_held = true;
  std::thread client([&] { EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running == 1; }));
  EXPECT_EQ(Ask("POST", "/flush_cache").status, 400);
  runner_->is_held = false;
  client.join();
  ASSERT_TRUE(AllPagesReturned());
  EXPECT_EQ(Ask("POST", "/flush_cache").status, 200);
  EXPECT_EQ(engine_->Snapshot().pages_cached, PageCount(0));
  EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200);
}

TEST_F(ServerTest, UsageComesWithEveryChunkIfAskedFor) {
  Start();
  json request = Chat(5, true);
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<std::string> data = Stream("/v1/chat/completions", request);
  int64_t last = 0;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    const json usage = json::parse(data[i])["usage"];
    EXPECT_GT(usage["prompt_tokens"], 0);
    EXPECT_GE(usage["completion_tokens"], last);
    last = usage["completion_tokens"];
  }
  EXPECT_EQ(last, 5);
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

TEST_F(ServerTest, TheDocumentNamesEveryPath) {
  Start();
  const json document = json::parse(Ask("GET", "/openapi.json").body);
  EXPECT_EQ(document["openapi"], "3.1.0");
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      if (method == "post" && path != "/flush_cache") {
        EXPECT_EQ(Ask("POST", path, "{}").status, 400) << path;
        EXPECT_TRUE(operation.contains("requestBody")) << path;
      }
      EXPECT_EQ(Ask("PUT", path).status, 405) << path;
    }
  }
  EXPECT_EQ(document["paths"].size(), 16u);
}

TEST_F(ServerTest, NumbersAddUp) {
  Start();
  for (int i = 0; i < 3; ++i) Post("/v1/chat/completions", Chat(7));
  const json stats = json::parse(Ask("GET", "/stats").body);
  EXPECT_EQ(stats["state"], "ready");
  EXPECT_EQ(stats["page_size"], 4);
  EXPECT_EQ(stats["context_length"], 400);
  EXPECT_EQ(stats["pages"]["total"], 400);
  EXPECT_EQ(stats["pages"]["free"].get<int>() + stats["pages"]["cached"].get<int>(), 400);
  EXPECT_EQ(stats["counters"]["output_tokens"], 21);
  const std::string text = Ask("GET", "/metrics").body;
  for (const char* line :
       {R"(quire:generation_tokens_total{model_name="test-model"} 21)",
        R"(quire:e2e_request_latency_seconds_count{model_name="test-model"} 3)",
        R"(quire:time_to_first_token_seconds_count{model_name="test-model"} 3)",
        R"(quire:inter_token_latency_seconds_count{model_name="test-model"} 18)"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  const json info = json::parse(Ask("GET", "/server_info").body);
  EXPECT_EQ(info["threads"], 3);
  EXPECT_EQ(info["limits"]["pages"], 400);
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
