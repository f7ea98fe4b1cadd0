#include "serve/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/messages_answer.h"
#include "serve/messages_request.h"
#include "serve/openai_response.h"
#include "serve/openapi.h"
#include "serve/page.h"
#include "serve/responses_request.h"
#include "textgen/text_model.h"

namespace quire {
namespace {

constexpr std::string_view kRetrySeconds = "1";
constexpr std::string_view kOneModel = "/v1/models/{model}";
// The page's own files and this server, and nothing else.
constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// In the time that the length of `key` takes, wherever they differ.
bool EqualsKey(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(key[i] ^ other);
  }
  return difference == 0;
}

// Ids below `vocab_size` that are no token decode to nothing: models have more rows than their
// tokenizers.
void CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < vocab_size) continue;
    const std::string where = fmt::format("tokens[{}]", i);
    throw BadField(where, fmt::format("{}: expected a token of the model, 0..{}, got {}", where,
                                      vocab_size - 1, tokens[i]));
  }
}

// "authorization, content-type": names and what separates them, and nothing else.
bool IsHeaderList(std::string_view text) {
  const auto is_proper = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  };
  return !text.empty() && text.size() <= 2048 && std::ranges::all_of(text, is_proper);
}

// As they were written: 0.95, and not the nearest float's 0.949999988.
OrderedJson SamplingJson(const SamplingParams& sampling) {
  OrderedJson json = OrderedJson::object();
  const auto add = [&](const char* name, float value) {
    json[name] = OrderedJson::parse(fmt::format("{}", value));
  };
  add("temperature", sampling.temperature);
  add("top_p", sampling.top_p);
  json["top_k"] = sampling.top_k;
  add("min_p", sampling.min_p);
  add("repetition_penalty", sampling.repetition_penalty);
  add("presence_penalty", sampling.presence_penalty);
  add("frequency_penalty", sampling.frequency_penalty);
  return json;
}

// An id that can stand in a header and in a log.
bool IsProperId(std::string_view id) {
  const auto is_proper = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; };
  return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, is_proper);
}

// "deepseek-ai%2FDeepSeek-V3" -> "deepseek-ai/DeepSeek-V3"; what is no escape stays as it is.
std::string DecodePercent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

const char* ServiceStateName(ServiceState state) {
  switch (state) {
    case ServiceState::kLoading:
      return "loading";
    case ServiceState::kReady:
      return "ready";
    case ServiceState::kDraining:
      return "draining";
    case ServiceState::kFailed:
      return "failed";
  }
  return "?";
}

Service::Service(asio::io_context& io, ServiceOptions options)
    : io_(io),
      options_(std::move(options)),
      created_(SecondsSince1970()),
      metrics_(options_.completions.model_name, EngineClock::now()),
      workers_(options_.num_workers),
      random_(std::random_device()()) {}

void Service::SetReady(TextEngine& engine, std::string info) {
  engine_ = &engine;
  info_ = std::move(info);
  completions_.emplace(io_, workers_, engine, metrics_, options_.completions);
  if (state_ == ServiceState::kLoading) state_ = ServiceState::kReady;
}

void Service::StartDraining() { state_ = ServiceState::kDraining; }

// The engine's failure is seen by the next request, whatever it asks for.
void Service::CheckEngine() {
  if (engine_ == nullptr || state_ == ServiceState::kFailed) return;
  std::optional<std::string> failure = engine_->engine().failure();
  if (!failure) return;
  state_ = ServiceState::kFailed;
  failure_ = std::move(*failure);
}

void Service::CancelAll() {
  if (completions_) completions_->CancelAll();
}

// ---- Every request ----

const std::vector<Service::Route>& Service::Routes() {
  static const std::vector<Route>& routes = *new std::vector<Route>{
      {"GET", "/health", Access::kOpen, "Whether requests are taken", nullptr, &Service::Health},
      {"GET", "/metrics", Access::kKey, "Prometheus", nullptr, &Service::MetricsText},
      {"GET", "/stats", Access::kKey, "What the engine does now", nullptr, &Service::Stats},
      {"GET", "/server_info", Access::kKey, "What is served, and how", nullptr,
       &Service::ServerInfo},
      {"GET", "/get_server_info", Access::kKey, "The same, as SGLang calls it", nullptr,
       &Service::ServerInfo},
      {"GET", "/get_model_info", Access::kKey, "The model, as SGLang describes it", nullptr,
       &Service::ModelInfo},
      {"GET", "/openapi.json", Access::kKey, "This document", nullptr, &Service::OpenApi},
      {"GET", "/v1/models", Access::kKey, "The model", nullptr, &Service::Models},
      {"GET", kOneModel, Access::kKey, "The model, by its name", nullptr, &Service::Models},
      {"POST", "/v1/chat/completions", Access::kKeyAndModel, "Answers a conversation",
       ChatCompletionSchema, &Service::ChatCompletions},
      {"POST", "/v1/completions", Access::kKeyAndModel, "Continues texts", CompletionSchema,
       &Service::TextCompletions},
      {"POST", "/v1/responses", Access::kKeyAndModel, "Answers a conversation, as response items",
       ResponsesSchema, &Service::Responses},
      {"POST", "/v1/messages", Access::kKeyAndModel,
       "Answers a conversation, as Anthropic's API does", MessagesSchema, &Service::Messages},
      {"POST", "/v1/messages/count_tokens", Access::kKeyAndModel, "Counts a conversation's tokens",
       CountTokensSchema, &Service::CountTokens},
      {"POST", "/generate", Access::kKeyAndModel, "Continues texts, as SGLang does", GenerateSchema,
       &Service::Generate},
      {"POST", "/tokenize", Access::kKeyAndModel, "Text to tokens", TokenizeSchema,
       &Service::Tokenize},
      {"POST", "/detokenize", Access::kKeyAndModel, "Tokens to text", DetokenizeSchema,
       &Service::Detokenize},
      {"POST", "/apply-template", Access::kKeyAndModel, "Messages to the prompt",
       ApplyTemplateSchema, &Service::ApplyTemplate},
      {"POST", "/flush_cache", Access::kKeyAndModel, "Forgets every cached prefix", nullptr,
       &Service::FlushCache},
  };
  return routes;
}

// Throws ApiError(404).
const Service::Route& Service::FindRoute(std::string_view path) {
  static const Route& page =
      *new Route{"GET", "/", Access::kOpen, "A page to chat with", nullptr, &Service::Page};
  const Route* found = nullptr;
  for (const Route& route : Routes()) {
    const bool is_one = route.path == kOneModel && path.starts_with("/v1/models/");
    if (route.path == path || is_one) found = &route;
  }
  if (FindPageFile(path) != nullptr) found = &page;
  if (found == nullptr) {
    throw ErrorOfStatus(404, fmt::format("{}: there is no such path", path));
  }
  return *found;
}

// "GET, HEAD": the value of Allow.
std::string Service::AllowedMethods(const Route& route) const {
  std::string methods(route.method);
  if (route.method == "GET") methods += ", HEAD";
  if (!options_.origins.cors_origin.empty()) methods += ", OPTIONS";
  return methods;
}

// The client's own, if it is a proper one.
std::string Service::RequestId(const HttpRequest& request) {
  const std::optional<std::string_view> given = request.headers.Find("X-Request-Id");
  return given && IsProperId(*given) ? std::string(*given) : fmt::format("req-{:016x}", random_());
}

HttpHeaders Service::CommonHeaders(const std::string& id) const {
  HttpHeaders headers;
  headers.Add("X-Request-Id", id);
  headers.Add("Request-Id", id);  // as Anthropic's clients look for it
  AddCors(headers);
  return headers;
}

void Service::AddCors(HttpHeaders& headers) const {
  if (options_.origins.cors_origin.empty()) return;
  headers.Add("Access-Control-Allow-Origin", options_.origins.cors_origin);
  if (options_.origins.cors_origin != "*") headers.Add("Vary", "Origin");
  headers.Add("Access-Control-Expose-Headers", "X-Request-Id");
}

void Service::CheckAccess(const HttpRequest& request, Access access) const {
  if (access == Access::kOpen) return;
  if (!options_.api_keys.empty()) {
    constexpr std::string_view kBearer = "bearer ";
    const std::string_view given = request.headers.Find("Authorization").value_or("");
    const std::optional<std::string_view> plain = request.headers.Find("X-Api-Key");
    const bool is_bearer = EqualIgnoringCase(given.substr(0, kBearer.size()), kBearer);
    if (!is_bearer && !plain) {
      throw BadApiKey(
          "Authorization: expected \"Bearer KEY\" with an API key of this server, got none");
    }
    const std::string_view given_key = is_bearer ? given.substr(kBearer.size()) : *plain;
    bool is_known = false;
    for (const std::string& key : options_.api_keys) is_known |= EqualsKey(given_key, key);
    if (!is_known) {
      throw BadApiKey(fmt::format("{}: the API key is none of this server's",
                                  is_bearer ? "Authorization" : "X-Api-Key"));
    }
  }
  if (access != Access::kKeyAndModel || state_ == ServiceState::kReady) return;
  throw ErrorOfStatus(503, state_ == ServiceState::kFailed    ? "the engine has failed: " + failure_
                           : state_ == ServiceState::kLoading ? "the model is being loaded"
                                                              : "the server is shutting down");
}

// Path, method, key and state: all that a header says. Throws ApiError.
const Service::Route& Service::CheckRoute(const HttpRequest& request, HttpHeaders& headers) const {
  const Route& route = FindRoute(request.path);
  const bool is_head = request.method == "HEAD" && route.method == "GET";
  if (request.method != route.method && !is_head) {
    headers.Add("Allow", AllowedMethods(route));
    throw ErrorOfStatus(405, fmt::format("{}: expected the method {}, got {}", request.path,
                                         AllowedMethods(route), request.method));
  }
  CheckAccess(request, route.access);
  // It would be read as JSON, and be none.
  const std::string_view coding = request.headers.Find("Content-Encoding").value_or("identity");
  if (!EqualIgnoringCase(coding, "identity")) {
    throw ErrorOfStatus(415,
                        fmt::format("Content-Encoding: expected a body that is not encoded, got {}",
                                    QuoteForMessage(coding)));
  }
  return route;
}

std::optional<HttpEarlyAnswer> Service::CheckHeader(const HttpRequest& request) {
  CheckEngine();
  const std::string id = RequestId(request);
  HttpHeaders headers = CommonHeaders(id);
  try {
    CheckOrigin(request, options_.origins);
    const bool is_preflight = request.method == "OPTIONS" && !options_.origins.cors_origin.empty();
    if (!is_preflight) CheckRoute(request, headers);
    return std::nullopt;
  } catch (const ApiError& error) {
    return HttpEarlyAnswer{.response = ErrorResponse(error, request.path, std::move(headers)),
                           .note = id,
                           .error = error.what()};
  }
}

asio::awaitable<void> Service::Handle(const HttpRequest& request, HttpResponder& responder) {
  CheckEngine();
  const std::string id = RequestId(request);
  responder.set_note(id);
  HttpHeaders headers = CommonHeaders(id);
  std::optional<ApiError> refusal;
  try {
    CheckOrigin(request, options_.origins);
    if (request.method == "OPTIONS" && !options_.origins.cors_origin.empty()) {
      co_await Preflight(request, responder, headers);
      co_return;
    }
    const Route& route = CheckRoute(request, headers);
    co_await (this->*route.handle)(request, responder, headers);
  } catch (const ApiError& error) {
    refusal = error;
  } catch (const Error& error) {
    refusal = FromError(error);
  } catch (const InternalError& error) {
    refusal = ErrorOfStatus(500, error.what());
  }
  // Outside of the handlers above, where nothing can be awaited.
  if (refusal) co_await SendError(responder, *refusal, request.path, headers);
}

HttpResponse Service::MakeError(int status, std::string_view message) const {
  HttpResponse response{.status = status,
                        .content_type = std::string(kJsonContentType),
                        .body = ErrorOfStatus(status, message).ToJson()};
  AddCors(response.headers);
  if (status == 503) response.headers.Add("Retry-After", std::string(kRetrySeconds));
  return response;
}

HttpResponse Service::ErrorResponse(const ApiError& error, std::string_view path,
                                    HttpHeaders headers) {
  if (error.status() == 401) headers.Add("WWW-Authenticate", "Bearer");
  // OpenAI's clients would ask again what has just taken too long.
  if (error.code() == "deadline_exceeded") headers.Add("X-Should-Retry", "false");
  if (error.status() == 429 || error.status() == 503) {
    headers.Add("Retry-After", std::string(kRetrySeconds));
  }
  return {.status = error.status(),
          .content_type = std::string(kJsonContentType),
          .body = error.ToJson(ErrorFormOf(path)),
          .headers = std::move(headers)};
}

asio::awaitable<void> Service::SendError(HttpResponder& responder, const ApiError& error,
                                         std::string_view path, HttpHeaders headers) {
  if (responder.started()) throw error;  // too late: the connection is closed
  responder.set_error(error.what());
  co_await responder.Send(ErrorResponse(error, path, std::move(headers)));
}

asio::awaitable<void> Service::SendJson(HttpResponder& responder, const HttpHeaders& headers,
                                        std::string body, int status) {
  HttpResponse response{.status = status,
                        .content_type = std::string(kJsonContentType),
                        .body = std::move(body),
                        .headers = headers};
  co_await responder.Send(std::move(response));
}

// A short reply whole, a long one as it is taken. Both are made on a worker.
asio::awaitable<void> Service::Reply(const HttpRequest& request, HttpResponder& responder,
                                     const HttpHeaders& headers,
                                     std::function<ReplyPieces(std::stop_token)> prepare) {
  asio::thread_pool& workers = workers_.For(request.body.size());
  ReplyPieces pieces;
  std::string first;
  std::string piece = co_await RunOnWorkers(workers, [&](std::stop_token stop) {
    pieces = prepare(std::move(stop));
    first = pieces();
    return pieces();
  });
  if (piece.empty()) {
    co_await SendJson(responder, headers, std::move(first));
    co_return;
  }
  co_await responder.Start(200, std::string(kJsonContentType), headers);
  co_await responder.Write(first);
  while (!piece.empty()) {
    co_await responder.Write(piece);
    piece = co_await RunOnWorkers(workers, [&](const std::stop_token&) { return pieces(); });
  }
  co_await responder.Finish();
}

// ---- About the server ----

asio::awaitable<void> Service::Preflight(const HttpRequest& request, HttpResponder& responder,
                                         HttpHeaders headers) {
  headers.Add("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
  // Clients add headers of their own, and none that this server reads is dangerous.
  const std::string_view asked =
      request.headers.Find("Access-Control-Request-Headers").value_or("");
  headers.Add("Access-Control-Allow-Headers", IsHeaderList(asked)
                                                  ? std::string(asked)
                                                  : "Authorization, Content-Type, X-Request-Id");
  headers.Add("Access-Control-Max-Age", "86400");
  HttpResponse response{.status = 204, .headers = std::move(headers)};
  co_await responder.Send(std::move(response));
}

asio::awaitable<void> Service::Page(const HttpRequest& request, HttpResponder& responder,
                                    const HttpHeaders& headers) {
  const PageFile& file = *FindPageFile(request.path);
  HttpResponse response{.content_type = std::string(file.content_type),
                        .body = std::string(file.bytes),
                        .headers = headers};
  response.headers.Add("Content-Security-Policy", std::string(kPagePolicy));
  response.headers.Add("X-Content-Type-Options", "nosniff");
  response.headers.Add("Cache-Control", "no-cache");
  co_await responder.Send(std::move(response));
}

asio::awaitable<void> Service::Health(const HttpRequest&, HttpResponder& responder,
                                      const HttpHeaders& headers) {
  const auto step_age =
      engine_ != nullptr ? engine_->engine().step_age() : std::optional<EngineClock::duration>();
  const bool hangs = step_age && *step_age > options_.step_timeout;
  const bool is_ready = state_ == ServiceState::kReady && !hangs;
  nlohmann::ordered_json body{{"status", is_ready ? "ok" : ServiceStateName(state_)}};
  if (state_ == ServiceState::kFailed) {
    body["reason"] = failure_;
  } else if (hangs) {
    body["status"] = "hanging";
    body["reason"] = fmt::format("a step has been running for {:.0f} s",
                                 std::chrono::duration<double>(*step_age).count());
  }
  HttpHeaders all = headers;
  if (!is_ready) all.Add("Retry-After", std::string(kRetrySeconds));
  co_await SendJson(responder, all, body.dump(), is_ready ? 200 : 503);
}

SchedulerSnapshot Service::Snapshot() const {
  return engine_ != nullptr ? engine_->engine().Snapshot() : SchedulerSnapshot();
}

EngineClock::duration Service::SinceLastStep() const {
  return engine_ != nullptr ? engine_->engine().since_last_step() : EngineClock::duration(0);
}

asio::awaitable<void> Service::MetricsText(const HttpRequest&, HttpResponder& responder,
                                           const HttpHeaders& headers) {
  HttpResponse response{.content_type = std::string(kMetricsContentType),
                        .body = metrics_.Text(Snapshot(), SinceLastStep()),
                        .headers = headers};
  co_await responder.Send(std::move(response));
}

asio::awaitable<void> Service::Stats(const HttpRequest&, HttpResponder& responder,
                                     const HttpHeaders& headers) {
  nlohmann::ordered_json body =
      nlohmann::ordered_json::parse(metrics_.Json(Snapshot(), EngineClock::now()));
  body["state"] = ServiceStateName(state_);
  body["version"] = options_.version;
  if (engine_ != nullptr) {
    const RunnerLimits& limits = engine_->engine().limits();
    body["page_size"] = limits.page_size.raw();
    body["context_length"] = limits.context.raw();
    body["max_running"] = limits.max_seqs * static_cast<int64_t>(engine_->engine().num_groups());
  }
  co_await SendJson(responder, headers, body.dump());
}

asio::awaitable<void> Service::ServerInfo(const HttpRequest&, HttpResponder& responder,
                                          const HttpHeaders& headers) {
  nlohmann::ordered_json body{{"version", options_.version},
                              {"model", options_.completions.model_name},
                              {"state", ServiceStateName(state_)}};
  body.update(nlohmann::ordered_json::parse(info_));
  if (engine_ != nullptr) {
    const RunnerLimits& limits = engine_->engine().limits();
    const auto num_groups = static_cast<int64_t>(engine_->engine().num_groups());
    body["limits"] = {{"page_size", limits.page_size.raw()},
                      {"pages", (limits.pool_pages.raw() - 1) * num_groups},  // less scratch pages
                      {"context_length", limits.context.raw()},
                      {"max_running_requests", limits.max_seqs * num_groups},
                      {"tokens_per_step", limits.max_step_tokens.raw() * num_groups},
                      {"vocab_size", limits.vocab_size}};
    body["sampling_defaults"] = SamplingJson(engine_->model().generation.sampling);
    if (!engine_->model().chat) body["no_chat_template"] = engine_->model().no_chat;
  }
  co_await SendJson(responder, headers, body.dump());
}

asio::awaitable<void> Service::ModelInfo(const HttpRequest&, HttpResponder& responder,
                                         const HttpHeaders& headers) {
  const std::string& name = options_.completions.model_name;
  const OrderedJson body = {{"model_path", name},
                            {"tokenizer_path", name},
                            {"is_generation", true},
                            {"preferred_sampling_params", nullptr},
                            {"weight_version", "default"}};
  co_await SendJson(responder, headers, Dump(body));
}

asio::awaitable<void> Service::OpenApi(const HttpRequest&, HttpResponder& responder,
                                       const HttpHeaders& headers) {
  std::vector<ApiPath> paths;
  for (const Route& route : Routes()) {
    paths.push_back({.method = route.method,
                     .path = route.path,
                     .summary = route.summary,
                     .errors = ErrorFormOf(route.path),
                     .needs_key = route.access != Access::kOpen && !options_.api_keys.empty()});
    if (route.schema != nullptr) paths.back().body = route.schema(options_.completions.limits);
  }
  co_await SendJson(responder, headers, OpenApiJson(paths, options_.version));
}

asio::awaitable<void> Service::Models(const HttpRequest& request, HttpResponder& responder,
                                      const HttpHeaders& headers) {
  const std::string& name = options_.completions.model_name;
  ServedModel served{.id = name, .created = created_};
  if (engine_ != nullptr) served.context = engine_->engine().limits().context.raw();
  constexpr std::string_view kOne = "/v1/models/";
  if (request.path.starts_with(kOne)) {
    CheckModelName(DecodePercent(std::string_view(request.path).substr(kOne.size())), name);
    co_await SendJson(responder, headers, ModelJson(served));
  } else {
    co_await SendJson(responder, headers, ModelsJson(served));
  }
}

// ---- What the model does ----

asio::awaitable<void> Service::ChatCompletions(const HttpRequest& request, HttpResponder& responder,
                                               const HttpHeaders& headers) {
  return completions_->Handle(Endpoint::kChat, request, responder, headers);
}

asio::awaitable<void> Service::TextCompletions(const HttpRequest& request, HttpResponder& responder,
                                               const HttpHeaders& headers) {
  return completions_->Handle(Endpoint::kCompletion, request, responder, headers);
}

asio::awaitable<void> Service::Generate(const HttpRequest& request, HttpResponder& responder,
                                        const HttpHeaders& headers) {
  return completions_->Handle(Endpoint::kGenerate, request, responder, headers);
}

asio::awaitable<void> Service::Responses(const HttpRequest& request, HttpResponder& responder,
                                         const HttpHeaders& headers) {
  return completions_->Handle(Endpoint::kResponses, request, responder, headers);
}

asio::awaitable<void> Service::Messages(const HttpRequest& request, HttpResponder& responder,
                                        const HttpHeaders& headers) {
  return completions_->Handle(Endpoint::kMessages, request, responder, headers);
}

asio::awaitable<void> Service::CountTokens(const HttpRequest& request, HttpResponder& responder,
                                           const HttpHeaders& headers) {
  return Reply(request, responder, headers, [this, &request](const std::stop_token& stop) {
    std::string reply = CountedTokensJson(completions_->CountTokens(request.body, stop));
    return [reply = std::move(reply)]() mutable { return std::exchange(reply, {}); };
  });
}

asio::awaitable<void> Service::FlushCache(const HttpRequest&, HttpResponder& responder,
                                          const HttpHeaders& headers) {
  if (!engine_->engine().EmptyCache()) {
    throw ErrorOfStatus(400, "the cache is in use: expected no request that runs or waits");
  }
  co_await SendJson(responder, headers, R"({"success":true,"message":"Cache flushed."})");
}

asio::awaitable<void> Service::Tokenize(const HttpRequest& request, HttpResponder& responder,
                                        const HttpHeaders& headers) {
  return Reply(request, responder, headers, [this, &request](std::stop_token stop) {
    TokenizeRequest parsed = ParseTokenizeRequest(request.body, options_.completions.limits);
    CheckModelName(parsed.model, options_.completions.model_name);
    const TextModel& model = engine_->model();
    if (parsed.conversation) {
      Require(model.chat.has_value(), "this model has no chat template: {}", model.no_chat);
      completions_->FitToTemplate(*parsed.conversation);
      parsed.text = model.chat->Render(parsed.conversation->ToChatRequest());
    }
    parsed.options.stop = std::move(stop);
    return TokenizeReply(model.tokenizer->Encode(parsed.text, parsed.options), *model.tokenizer,
                         parsed.with_pieces, engine_->engine().limits().context.raw());
  });
}

asio::awaitable<void> Service::Detokenize(const HttpRequest& request, HttpResponder& responder,
                                          const HttpHeaders& headers) {
  return Reply(request, responder, headers, [this, &request](const std::stop_token&) {
    DetokenizeRequest parsed = ParseDetokenizeRequest(request.body, options_.completions.limits);
    CheckModelName(parsed.model, options_.completions.model_name);
    CheckTokens(parsed.tokens, engine_->engine().limits().vocab_size);
    return DetokenizeReply(std::move(parsed.tokens), parsed.options, *engine_->model().tokenizer);
  });
}

asio::awaitable<void> Service::ApplyTemplate(const HttpRequest& request, HttpResponder& responder,
                                             const HttpHeaders& headers) {
  return Reply(request, responder, headers, [this, &request](std::stop_token stop) {
    ApplyTemplateRequest parsed =
        ParseApplyTemplateRequest(request.body, options_.completions.limits);
    CheckModelName(parsed.model, options_.completions.model_name);
    completions_->FitToTemplate(parsed.conversation);
    return ApplyTemplateReply(
        MakeChatPrompt(engine_->model(), parsed.conversation.ToChatRequest(), std::move(stop))
            .text);
  });
}

}  // namespace quire
