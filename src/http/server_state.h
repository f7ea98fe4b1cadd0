// What the connections of a server share.
#ifndef QUIRE_HTTP_SERVER_STATE_H_
#define QUIRE_HTTP_SERVER_STATE_H_

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "http/body_budget.h"
#include "http/connection.h"
#include "http/listener.h"
#include "http/server.h"

namespace quire::internal {

inline constexpr auto kNever = std::chrono::steady_clock::time_point::max();
// Awaits an operation that may end as it likes.
inline constexpr auto kQuietly = asio::as_tuple(asio::use_awaitable);

// Owned by the HttpServer and by every connection, so that these may end after the server.
class HttpServerState : public std::enable_shared_from_this<HttpServerState> {
 public:
  HttpServerState(asio::io_context& io, HttpServerOptions options, HttpHandler handler);

  void StartAccepting();
  void StopAccepting();
  void CloseAll();
  asio::awaitable<void> Drained();

  HttpResponse MakeError(int status, std::string_view message) const;
  void Record(const AccessRecord& record) const;
  void Remove(HttpConnection* connection);

  asio::any_io_executor executor() { return io_.get_executor(); }
  const HttpServerOptions& options() const { return options_; }
  const HttpHandler& handler() const { return handler_; }
  const Listener& listener() const { return listener_; }
  const std::shared_ptr<BodyBudget>& body_budget() const { return body_budget_; }
  bool stopping() const { return stopping_; }
  int num_connections() const { return num_served_; }

  int num_requests = 0;  // handlers that run; HttpConnection counts

 private:
  asio::awaitable<void> AcceptLoop();
  bool TryAdmit(Transport::Socket socket);
  void Admit(Transport::Socket socket);
  std::vector<std::shared_ptr<HttpConnection>> Connections() const;

  asio::io_context& io_;
  const HttpServerOptions options_;
  const HttpHandler handler_;
  const std::shared_ptr<BodyBudget> body_budget_;
  std::optional<asio::ssl::context> tls_;
  Listener listener_;
  asio::steady_timer retry_;         // after a failed accept
  asio::steady_timer became_empty_;  // never expires: cancelled to wake those in Drained
  std::unordered_set<HttpConnection*> connections_;
  int num_served_ = 0;  // without those that are being refused
  bool stopping_ = false;
};

}  // namespace quire::internal

#endif  // QUIRE_HTTP_SERVER_STATE_H_
