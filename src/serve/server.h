// A running server: the HTTP server, the service behind it, the thread they run on, and their end.
//
// It listens from the start, so that /health can say that the model is being loaded.
#ifndef QUIRE_SERVE_SERVER_H_
#define QUIRE_SERVE_SERVER_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "http/server.h"
#include "serve/service.h"
#include "textgen/text_engine.h"

namespace quire {

struct ServerOptions {
  HttpServerOptions http = {};  // its make_error is the service's
  ServiceOptions service = {};
  // How long open requests may go on after Stop; then they are cancelled.
  std::chrono::milliseconds drain_timeout{30'000};
  // While there is work, a line says so often what the engine does. Zero: none.
  std::chrono::milliseconds status_interval{10'000};
  // Unknown fields of requests are ignored, and each name is told to on_message once.
  bool ignore_unknown_fields = false;
  std::function<void(std::string_view)> on_message =
      {};  // what one would log; on the server's thread
};

// Functions may be called from any thread.
class Server {
 public:
  // Throws as HttpServer.
  explicit Server(ServerOptions options);
  // Closes whatever is open. An engine given to SetReady must still be there.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // "http://127.0.0.1:8080"
  int port() const { return port_; }

  // `engine` outlives the server's last request: until Wait has returned, or the destructor.
  void SetReady(TextEngine& engine, std::string info = "{}");  // as Service::SetReady

  // First: no new requests, /health says so, and the server ends when those that are open have ended,
  // or drain_timeout has passed. Again: it ends now.
  void Stop();
  // SIGINT and SIGTERM call Stop from now on. One server of a process.
  void StopOnSignals();
  // Until the server has ended.
  void Wait();

 private:
  void Post(std::function<void()> work);
  void StopOnIo();
  void AwaitSignal();
  asio::awaitable<void> Drain();
  asio::awaitable<void> WaitUntilNoneOpen(std::chrono::milliseconds limit);
  void Log(std::string_view message) const;
  ServiceOptions MakeServiceOptions();
  asio::awaitable<void> TellStatus();
  int64_t LogStatus(int64_t tokens_before);

  const ServerOptions options_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::signal_set signals_;  // but for StopOnSignals used on io_ only; so is all that follows
  Service service_;
  HttpServer http_;
  asio::steady_timer status_timer_;
  std::set<std::string> unknown_fields_;  // that were told of
  bool stopping_ = false;
  bool draining_is_over_ = false;
  bool ending_now_ = false;

  std::string endpoint_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_SERVER_H_
