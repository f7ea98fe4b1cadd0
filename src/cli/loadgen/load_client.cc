#include "cli/loadgen/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "cli/parse.h"
#include "io/json.h"

namespace quire::cli {
namespace {

using std::chrono::milliseconds;

const char* PathOf(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

}  // namespace

std::string RequestBody(const LoadTarget& target, const PlannedRequest& request) {
  nlohmann::ordered_json body{{"model", target.model}};
  if (target.endpoint == Endpoint::kChat) {
    body["messages"] = {{{"role", "user"}, {"content", request.prompt}}};
  } else {
    body["prompt"] = request.prompt;
  }
  body["max_tokens"] = request.max_tokens;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (target.ignore_eos == IgnoreEos::kYes) body["ignore_eos"] = true;
  return body.dump();
}

LoadClient::LoadClient(asio::io_context& io, LoadTarget target)
    : io_(io), target_(std::move(target)) {
  target_.url = WithoutVersion(std::move(target_.url));
  idle_.push_back(TakeConnection());  // a URL that cannot be read is known at once
}

std::unique_ptr<HttpClient> LoadClient::TakeConnection() {
  if (!idle_.empty()) {
    std::unique_ptr<HttpClient> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }
  HttpClientOptions options{
      .url = target_.url, .ca_file = target_.ca_file, .verify_tls = target_.verify_tls};
  options.connect_timeout = std::min(options.connect_timeout, target_.timeout);
  // The time-out of the whole request comes first.
  options.read_timeout = target_.timeout + milliseconds(1000);
  return std::make_unique<HttpClient>(io_, options);
}

HttpClientRequest LoadClient::MakeRequest(std::string method, std::string path,
                                          std::string body) const {
  HttpClientRequest request{.method = std::move(method), .path = std::move(path)};
  if (!target_.api_key.empty()) {
    request.headers.Add("Authorization", "Bearer " + target_.api_key);
  }
  if (!body.empty()) request.headers.Add("Content-Type", "application/json");
  request.body = std::move(body);
  return request;
}

asio::awaitable<std::string> LoadClient::FirstModel() {
  std::unique_ptr<HttpClient> http = TakeConnection();
  const std::string what = target_.url + "/v1/models";
  HttpClientRequest request = MakeRequest("GET", "/v1/models", "");
  const HttpResponse response = co_await http->Request(std::move(request));
  Require(response.status != 401, "{}: the server asks for a key: --api-key gives it one", what);
  Require(response.status == 200, "{}: expected status 200, got {}: {}", what, response.status,
          QuoteForMessage(response.body));
  const Json json = ParseJson(response.body, what);
  const std::vector<JsonRef> models = JsonRef(json, what).At("data").Array();
  Require(!models.empty(), "{}: expected one model or more, got none; --model names one", what);
  idle_.push_back(std::move(http));
  co_return models[0].At("id").String();
}

asio::awaitable<void> LoadClient::Exchange(HttpClient& http, HttpClientRequest request,
                                           LoadAnswer& answer, const RequestRecord& record,
                                           const RunClock& clock) {
  HttpClient::OnPiece on_piece = [&](std::string_view piece) {
    const size_t before = record.deltas.size();
    answer.Feed(piece, clock.Now());
    num_deltas_ += static_cast<int64_t>(record.deltas.size() - before);
  };
  try {
    const HttpResponse response = co_await http.Request(std::move(request), std::move(on_piece));
    if (response.status / 100 == 2) {
      answer.Finish(response.content_type, clock.Now());
    } else {
      answer.Refuse(response.status, response.body, clock.Now());
    }
  } catch (const boost::system::system_error& error) {
    // Cancelled: Send knows why.
    if (error.code() != asio::error::operation_aborted) answer.Break(error.what(), clock.Now());
  } catch (const std::exception& error) {
    answer.Break(error.what(), clock.Now());
  }
}

asio::awaitable<RequestRecord> LoadClient::Send(PlannedRequest planned, RequestRecord record,
                                                const RunClock& clock) {
  using asio::experimental::awaitable_operators::operator||;
  record.input_words = planned.input_words;
  record.max_tokens = planned.max_tokens;
  record.end = record.begin;
  if (is_stopped_) co_return record;
  std::unique_ptr<HttpClient> http = TakeConnection();
  HttpClientRequest request =
      MakeRequest("POST", PathOf(target_.endpoint), RequestBody(target_, planned));
  LoadAnswer answer(target_.endpoint, record);
  asio::steady_timer deadline(io_, target_.timeout);
  deadlines_.insert(&deadline);
  // Exchange does not throw, so what ends first ends the other.
  co_await (Exchange(*http, std::move(request), answer, record, clock) ||
            deadline.async_wait(asio::as_tuple(asio::use_awaitable)));
  deadlines_.erase(&deadline);
  if (record.outcome == Outcome::kUnfinished) {
    record.end = clock.Now();
    if (!is_stopped_) {
      record.outcome = Outcome::kTimeout;
      record.message = fmt::format("not finished after {} s",
                                   static_cast<double>(target_.timeout.count()) * 1e-3);
    }
  }
  if (record.outcome == Outcome::kOk) {
    finished_deltas_ += std::ssize(record.deltas);
    finished_tokens_ += record.OutputTokens();
  }
  idle_.push_back(std::move(http));
  co_return record;
}

double LoadClient::EstimateTokens() const {
  const auto deltas = static_cast<double>(num_deltas_);
  if (finished_deltas_ == 0) return deltas;
  return deltas * static_cast<double>(finished_tokens_) / static_cast<double>(finished_deltas_);
}

void LoadClient::Stop() {
  is_stopped_ = true;
  for (asio::steady_timer* deadline : deadlines_) deadline->cancel();
}

}  // namespace quire::cli
