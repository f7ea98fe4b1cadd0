#include "http/server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <utility>
#include <vector>

#include "base/error.h"
#include "http/server_state.h"

namespace quire {

asio::awaitable<void> HttpResponder::Send(HttpResponse response) {
  return exchange_.Send(std::move(response));
}

asio::awaitable<void> HttpResponder::Start(int status, std::string content_type,
                                           HttpHeaders headers) {
  return exchange_.Start(status, std::move(content_type), std::move(headers));
}

asio::awaitable<void> HttpResponder::Write(std::string_view piece) {
  return exchange_.Write(piece);
}

asio::awaitable<void> HttpResponder::Finish() { return exchange_.Finish(); }

void HttpResponder::DropBody() { exchange_.DropBody(); }

bool HttpResponder::started() const { return exchange_.started(); }

void HttpResponder::set_note(std::string note) { exchange_.record.note = std::move(note); }

void HttpResponder::set_error(std::string error) { exchange_.record.error = std::move(error); }

void HttpResponder::set_value(std::string_view name, double value) {
  exchange_.record.values.emplace_back(name, value);
}

std::string_view HttpOutcomeName(HttpOutcome outcome) {
  switch (outcome) {
    case HttpOutcome::kAnswered:
      return "answered";
    case HttpOutcome::kRefused:
      return "refused";
    case HttpOutcome::kHandlerFailed:
      return "handler_failed";
    case HttpOutcome::kClientGone:
      return "client_gone";
    case HttpOutcome::kWriteTimedOut:
      return "write_timed_out";
    case HttpOutcome::kServerClosed:
      return "server_closed";
  }
  return "unknown";
}

HttpServer::HttpServer(asio::io_context& io, HttpServerOptions options, HttpHandler handler)
    : state_(
          std::make_shared<internal::HttpServerState>(io, std::move(options), std::move(handler))) {
  state_->StartAccepting();
}

HttpServer::~HttpServer() { CloseAll(); }

void HttpServer::StopAccepting() { state_->StopAccepting(); }
void HttpServer::CloseAll() { state_->CloseAll(); }
asio::awaitable<void> HttpServer::Drained() { return state_->Drained(); }
int HttpServer::port() const { return state_->listener().port(); }
std::string HttpServer::endpoint() const { return state_->listener().endpoint(); }
int HttpServer::num_connections() const { return state_->num_connections(); }
int HttpServer::num_requests() const { return state_->num_requests; }

namespace internal {
namespace {

// At the limit a connection is told so, which takes a while; beyond so many more it is just closed.
constexpr size_t kMaxRefusing = 64;

}  // namespace

HttpServerState::HttpServerState(asio::io_context& io, HttpServerOptions options,
                                 HttpHandler handler)
    : io_(io),
      options_(std::move(options)),
      handler_(std::move(handler)),
      body_budget_(std::make_shared<BodyBudget>(BodyBudget{.most = options_.max_total_body_bytes})),
      listener_((Require(options_.max_connections > 0,
                         "max_connections: expected at least 1, got {}", options_.max_connections),
                 Require(options_.max_total_body_bytes >= options_.max_body_bytes,
                         "max_total_body_bytes: expected max_body_bytes, {}, or more, got {}",
                         options_.max_body_bytes, options_.max_total_body_bytes),
                 io),
                options_),
      retry_(io),
      became_empty_(io, kNever) {
  if (!options_.tls_certificate_file.empty() || !options_.tls_key_file.empty()) {
    tls_ = MakeServerTls(options_.tls_certificate_file, options_.tls_key_file);
  }
}

void HttpServerState::StartAccepting() {
  asio::co_spawn(
      executor(), [self = shared_from_this()] { return self->AcceptLoop(); }, asio::detached);
}

asio::awaitable<void> HttpServerState::AcceptLoop() {
  const auto self = shared_from_this();
  while (!stopping_) {
    auto [error, socket] = co_await listener_.acceptor().async_accept(kQuietly);
    if (stopping_) break;
    if (!error && TryAdmit(std::move(socket))) continue;
    // Out of descriptors, most likely: the connection stays in the kernel's queue. Or out of memory.
    retry_.expires_after(std::chrono::milliseconds(50));
    co_await retry_.async_wait(kQuietly);
  }
}

// A connection that cannot be taken is closed, and the next one is waited for all the same.
bool HttpServerState::TryAdmit(Transport::Socket socket) {
  try {
    Admit(std::move(socket));
    return true;
  } catch (const std::exception& exception) {
    if (options_.on_error) {
      options_.on_error(fmt::format("a connection could not be taken: {}", exception.what()));
    }
    return false;
  }
}

void HttpServerState::Admit(Transport::Socket socket) {
  const bool serve = num_served_ < options_.max_connections;
  const auto num_refusing = connections_.size() - static_cast<size_t>(num_served_);
  if (!serve && num_refusing >= kMaxRefusing) return;
  if (options_.on_connection) options_.on_connection();
  error_code ignored;
  // Pieces of a stream are small and must not wait for each other. No such option on a unix socket.
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto peer = socket.remote_endpoint(ignored);
  auto transport =
      tls_ ? MakeTlsTransport(std::move(socket), *tls_, "") : MakePlainTransport(std::move(socket));
  auto connection = std::make_shared<HttpConnection>(
      shared_from_this(), std::move(transport), EndpointText(peer),
      serve ? HttpConnection::Admission::kServe : HttpConnection::Admission::kRefuse);
  connections_.insert(connection.get());
  if (serve) ++num_served_;
  try {
    asio::co_spawn(
        executor(), [connection] { return connection->Run(); }, asio::detached);
  } catch (...) {
    Remove(connection.get());
    throw;
  }
}

void HttpServerState::Remove(HttpConnection* connection) {
  if (connections_.erase(connection) == 0) return;
  if (connection->admission() == HttpConnection::Admission::kServe) --num_served_;
  if (connections_.empty()) became_empty_.cancel();
}

void HttpServerState::StopAccepting() {
  stopping_ = true;
  listener_.Close();
  retry_.cancel();
  if (connections_.empty()) became_empty_.cancel();
  for (const auto& connection : Connections()) connection->CloseIfIdle();
}

void HttpServerState::CloseAll() {
  StopAccepting();
  for (const auto& connection : Connections()) connection->Abort();
}

// A copy, because a cancelled handler may end its connection before the call returns.
std::vector<std::shared_ptr<HttpConnection>> HttpServerState::Connections() const {
  std::vector<std::shared_ptr<HttpConnection>> connections;
  for (HttpConnection* connection : connections_) {
    connections.push_back(connection->shared_from_this());
  }
  return connections;
}

asio::awaitable<void> HttpServerState::Drained() {
  const auto self = shared_from_this();
  while (!stopping_ || !connections_.empty()) co_await became_empty_.async_wait(kQuietly);
}

HttpResponse HttpServerState::MakeError(int status, std::string_view message) const {
  if (options_.make_error) return options_.make_error(status, message);
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = fmt::format("{}\n", message);
  return response;
}

void HttpServerState::Record(const AccessRecord& record) const {
  if (options_.on_access) options_.on_access(record);
}

}  // namespace internal
}  // namespace quire
