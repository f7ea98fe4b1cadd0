// The HTTP API: who may ask for what, and what answers.
//
//   GET   /                      the page: chat, and a live view of the engine
//   GET   /health                200 when requests are taken; 503 while loading, draining or failed, or
//                                when a step hangs
//   GET   /metrics               Prometheus
//   GET   /stats, /server_info   the live view's numbers; what is served and how
//   GET   /v1/models, /v1/models/NAME
//   POST  /v1/chat/completions, /v1/completions, /v1/responses, /tokenize, /detokenize, /apply-template
//   POST  /v1/messages, /v1/messages/count_tokens: Anthropic's
//   GET   /openapi.json          all of this, made from the tables that requests are checked with
//   POST  /generate, /flush_cache; GET /get_model_info, /get_server_info: as SGLang's
//
// Every answer to a whole request carries X-Request-Id: the client's own if it sent a proper one. Errors
// are OpenAI's, under /v1/messages Anthropic's
// (serve/api_error.h); what HTTP itself refuses is always in OpenAI's form. With API keys, everything but the
// page and /health needs one of them: "Authorization: Bearer KEY", or "X-Api-Key: KEY" as Anthropic's clients
// send it.
#ifndef QUIRE_SERVE_SERVICE_H_
#define QUIRE_SERVE_SERVICE_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "http/server.h"
#include "serve/completions.h"
#include "serve/metrics.h"
#include "serve/on_workers.h"
#include "serve/origin.h"
#include "serve/text_requests.h"
#include "textgen/text_engine.h"

namespace quire {

struct ServiceOptions {
  std::string version = {};
  CompletionsOptions completions = {};
  std::vector<std::string> api_keys = {};  // none: anyone may ask
  OriginRules origins = {};
  // A step that runs for longer is taken for one that hangs: /health says so.
  std::chrono::milliseconds step_timeout{300'000};
  int num_workers = 2;  // threads that read bodies and tokenize; for large ones one more
};

// kFailed: the engine has ended (Engine::failure), and only a new process can serve.
enum class ServiceState { kLoading, kReady, kDraining, kFailed };

// Used on `io` only.
class Service {
 public:
  Service(asio::io_context& io, ServiceOptions options);

  // Requests are taken from now on. `engine` outlives every Handle; `info`, a JSON object, is what
  // /server_info says besides.
  void SetReady(TextEngine& engine, std::string info);
  // No new ones; those that are open go on.
  void StartDraining();

  // The handler of an HttpServer.
  asio::awaitable<void> Handle(const HttpRequest& request, HttpResponder& responder);
  // The answer to a request that can be refused without its body.
  std::optional<HttpEarlyAnswer> CheckHeader(const HttpRequest& request);
  // Its make_error: what HTTP itself refuses, in the API's shape.
  HttpResponse MakeError(int status, std::string_view message) const;

  int64_t num_open() const { return completions_ ? completions_->num_open() : 0; }
  int64_t num_owed() const { return completions_ ? completions_->num_owed() : 0; }
  void CancelAll();
  // Of the engine; nothing before it is ready.
  SchedulerSnapshot Snapshot() const;
  Metrics& metrics() { return metrics_; }

 private:
  enum class Access { kOpen, kKey, kKeyAndModel };  // the last: the model is ready, too
  struct Route {
    std::string_view method;
    std::string_view path;
    Access access;
    std::string_view summary;
    OrderedJson (*schema)(const RequestLimits&);  // of a body; null: there is none
    asio::awaitable<void> (Service::*handle)(const HttpRequest&, HttpResponder&,
                                             const HttpHeaders& headers);
  };
  static const std::vector<Route>& Routes();
  static const Route& FindRoute(std::string_view path);
  std::string AllowedMethods(const Route& route) const;
  void CheckEngine();

  void AddCors(HttpHeaders& headers) const;
  std::string RequestId(const HttpRequest& request);
  HttpHeaders CommonHeaders(const std::string& id) const;
  const Route& CheckRoute(const HttpRequest& request, HttpHeaders& headers) const;
  static HttpResponse ErrorResponse(const ApiError& error, std::string_view path,
                                    HttpHeaders headers);
  void CheckAccess(const HttpRequest& request, Access access) const;
  asio::awaitable<void> SendError(HttpResponder& responder, const ApiError& error,
                                  std::string_view path, HttpHeaders headers);
  static asio::awaitable<void> SendJson(HttpResponder& responder, const HttpHeaders& headers,
                                        std::string body, int status = 200);
  asio::awaitable<void> Reply(const HttpRequest& request, HttpResponder& responder,
                              const HttpHeaders& headers,
                              std::function<ReplyPieces(std::stop_token)> prepare);
  EngineClock::duration SinceLastStep() const;

  asio::awaitable<void> Preflight(const HttpRequest&, HttpResponder&, HttpHeaders headers);
  asio::awaitable<void> Page(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Health(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> MetricsText(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Stats(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> ServerInfo(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Models(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> ChatCompletions(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> TextCompletions(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Responses(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Messages(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> CountTokens(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Tokenize(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Detokenize(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> ApplyTemplate(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> OpenApi(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> Generate(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> FlushCache(const HttpRequest&, HttpResponder&, const HttpHeaders&);
  asio::awaitable<void> ModelInfo(const HttpRequest&, HttpResponder&, const HttpHeaders&);

  asio::io_context& io_;
  const ServiceOptions options_;
  const int64_t created_;  // seconds since 1970
  Metrics metrics_;
  Workers workers_;
  std::mt19937_64 random_;
  ServiceState state_ = ServiceState::kLoading;
  std::string failure_;  // kFailed: why
  std::string info_ = "{}";
  TextEngine* engine_ = nullptr;
  std::optional<Completions> completions_;
};

const char* ServiceStateName(ServiceState state);  // "loading", "ready", "draining", "failed"

}  // namespace quire

#endif  // QUIRE_SERVE_SERVICE_H_
