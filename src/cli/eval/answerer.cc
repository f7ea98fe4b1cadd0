#include "cli/eval/answerer.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/answer_flags.h"
#include "cli/parse.h"
#include "http/client.h"
#include "io/json.h"
#include "textgen/text_engine.h"

namespace quire::cli {
namespace {

class LocalAnswerer final : public Answerer {
 public:
  LocalAnswerer(LocalModel& model, const Interrupt& interrupt)
      : model_(model), interrupt_(interrupt) {}

  GivenAnswer Ask(const std::string& question, const AskOptions& options) override {
    GivenAnswer given;
    try {
      TextRequest request = MakePrompt(question, options);
      request.tokens.max_tokens = options.max_tokens;
      request.tokens.sampling = model_.text->generation.sampling;
      request.tokens.sampling.temperature = static_cast<float>(options.temperature);
      if (!options.stop.empty()) request.stop = {options.stop};
      given.prompt_tokens = std::ssize(request.tokens.prompt);
      const ShownAnswer answer = ShowAnswer(*model_.answers, std::move(request), interrupt_, {});
      given.text = answer.text.content;
      given.output_tokens = answer.output_tokens;
      given.cached_tokens = answer.cached_tokens;
      given.was_interrupted = answer.finish == FinishReason::kCancelled;
    } catch (const std::exception& error) {
      given.error = error.what();
    }
    return given;
  }

 private:
  TextRequest MakePrompt(const std::string& question, const AskOptions& options) const {
    TextRequest request;
    if (options.as == AskAs::kText) {
      request.tokens.prompt = EncodePrompt(*model_.text, question);
      return request;
    }
    const OrderedJson messages = OrderedJson::array({MakeMessage("user", question)});
    ChatPrompt prompt = MakeChatPrompt(*model_.text, {.messages = &messages});
    request.tokens.prompt = std::move(prompt.tokens);
    request.reasoning = prompt.reasoning;
    return request;
  }

  LocalModel& model_;
  const Interrupt& interrupt_;
};

class ServerAnswerer final : public Answerer {
 public:
  ServerAnswerer(ServerAddress server, const Interrupt& interrupt)
      : server_(std::move(server)), interrupt_(interrupt) {
    server_.url = WithoutVersion(std::move(server_.url));
    asio::io_context io;
    HttpClient(io, {.url = server_.url});  // a url that is none is refused here, not as an answer
  }

  GivenAnswer Ask(const std::string& question, const AskOptions& options) override {
    GivenAnswer given;
    try {
      const HttpResponse response = Send(question, options);
      if (response.status != 200) {
        given.error = fmt::format("HTTP {}: {}", response.status, response.body.substr(0, 300));
        return given;
      }
      Read(response.body, options, given);
    } catch (const std::exception& error) {
      given.error = error.what();
      given.was_interrupted = interrupt_.raised();
    }
    return given;
  }

 private:
  HttpResponse Send(const std::string& question, const AskOptions& options) const {
    OrderedJson body;
    if (!server_.model.empty()) body["model"] = server_.model;
    if (options.as == AskAs::kChat) {
      body["messages"] = OrderedJson::array({MakeMessage("user", question)});
    } else {
      body["prompt"] = question;
    }
    body["max_tokens"] = options.max_tokens;
    body["temperature"] = options.temperature;
    if (!options.stop.empty()) body["stop"] = options.stop;
    HttpClientRequest request{
        .method = "POST",
        .path = options.as == AskAs::kChat ? "/v1/chat/completions" : "/v1/completions",
        .headers = {{"Content-Type", "application/json"}},
        .body = body.dump()};
    if (!server_.api_key.empty()) {
      request.headers.Add("Authorization", "Bearer " + server_.api_key);
    }
    asio::io_context io;
    HttpClient client(io, {.url = server_.url, .read_timeout = server_.timeout});
    asio::cancellation_signal cancel;
    std::future<HttpResponse> response =
        asio::co_spawn(io, client.Request(std::move(request)),
                       asio::bind_cancellation_slot(cancel.slot(), asio::use_future));
    constexpr std::chrono::milliseconds kLook{50};
    while (!io.stopped()) {
      io.run_for(kLook);
      if (interrupt_.raised()) cancel.emit(asio::cancellation_type::terminal);
    }
    return response.get();
  }

  static void Read(const std::string& body, const AskOptions& options, GivenAnswer& given) {
    const Json json = ParseJson(body, "answer");
    const JsonRef root(json, "answer");
    const JsonRef choice = root.At("choices").Array().at(0);
    given.text = options.as == AskAs::kChat ? choice.At("message").At("content").String()
                                            : choice.At("text").String();
    constexpr int64_t kMost = int64_t{1} << 40;
    const std::optional<JsonRef> usage = root.Find("usage");
    if (!usage) return;
    given.prompt_tokens = usage->At("prompt_tokens").Int(0, kMost);
    given.output_tokens = usage->At("completion_tokens").Int(0, kMost);
    if (const auto details = usage->Find("prompt_tokens_details")) {
      if (const auto cached = details->Find("cached_tokens")) {
        given.cached_tokens = cached->Int(0, kMost);
      }
    }
  }

  ServerAddress server_;
  const Interrupt& interrupt_;
};

}  // namespace

std::unique_ptr<Answerer> MakeLocalAnswerer(LocalModel& model, const Interrupt& interrupt) {
  return std::make_unique<LocalAnswerer>(model, interrupt);
}

std::unique_ptr<Answerer> MakeServerAnswerer(ServerAddress server, const Interrupt& interrupt) {
  return std::make_unique<ServerAnswerer>(std::move(server), interrupt);
}

}  // namespace quire::cli
