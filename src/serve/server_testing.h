// What the tests of the whole server share: a server over loopback, with a fake runner behind the engine.
#ifndef QUIRE_SERVE_SERVER_TESTING_H_
#define QUIRE_SERVE_SERVER_TESTING_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "http/client.h"
#include "http/sse.h"
#include "io/test_files.h"
#include "serve/server.h"
#include "testing/fake_runner.h"

namespace quire::testing {

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

}  // namespace quire::testing

#endif  // QUIRE_SERVE_SERVER_TESTING_H_
