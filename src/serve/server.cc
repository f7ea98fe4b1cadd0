#include "serve/server.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <utility>

namespace quire {
namespace {

// How long what was cancelled may take to say so to its clients.
constexpr std::chrono::milliseconds kLastWords{2'000};
constexpr std::chrono::milliseconds kLook{20};

HttpServerOptions MakeHttpOptions(HttpServerOptions options, Service& service,
                                  const std::function<void(std::string_view)>& on_message) {
  options.on_connection = [&service] { service.metrics().CountConnection(); };
  options.on_error = on_message;
  options.make_error = [&service](int status, std::string_view message) {
    return service.MakeError(status, message);
  };
  options.check_header = [&service](const HttpRequest& request) {
    return service.CheckHeader(request);
  };
  options.on_access = [&service, log = std::move(options.on_access)](const AccessRecord& record) {
    if (record.status != 0) service.metrics().CountResponse(record.status);
    if (log) log(record);
  };
  return options;
}

// What only this machine reaches is guarded against the pages that its browsers show; a unix socket is
// reached by none of them.
ServiceOptions MakeServiceOptions(const ServerOptions& options) {
  ServiceOptions service = options.service;
  service.origins.is_checked |=
      !service.origins.allowed_hosts.empty() ||
      (options.http.unix_socket.empty() && IsLoopback(options.http.address));
  return service;
}

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      work_(io_.get_executor()),
      signals_(io_),
      service_(io_, MakeServiceOptions(options_)),
      http_(io_, MakeHttpOptions(options_.http, service_, options_.on_message),
            [this](const HttpRequest& request, HttpResponder& responder) {
              return service_.Handle(request, responder);
            }),
      endpoint_(http_.endpoint()),
      port_(http_.port()),
      thread_([this] { io_.run(); }) {}

Server::~Server() {
  Post([this] {
    ending_now_ = true;
    StopOnIo();
  });
  Wait();
}

void Server::Post(std::function<void()> work) { asio::post(io_, std::move(work)); }

void Server::SetReady(TextEngine& engine, std::string info) {
  Post([this, &engine, info = std::move(info)] { service_.SetReady(engine, info); });
}

void Server::Stop() {
  Post([this] { StopOnIo(); });
}

void Server::StopOnSignals() {
  // Not on io_: who sends a signal after this has returned must not end the process with it. A signal
  // that comes before the wait is kept for it.
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  Post([this] { AwaitSignal(); });
}

void Server::AwaitSignal() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    Log(fmt::format(
        "{}: {}", signal == SIGINT ? "SIGINT" : "SIGTERM",
        stopping_ ? "ending now" : fmt::format("draining, {} requests open", service_.num_open())));
    AwaitSignal();  // before what may end all waiting: with nothing open, draining is over at once
    StopOnIo();
  });
}

void Server::StopOnIo() {
  if (std::exchange(stopping_, true)) {
    ending_now_ = true;
    http_.CloseAll();
    return;
  }
  asio::co_spawn(io_, Drain(), asio::detached);
}

// While requests are open the server still listens: whoever asks /health learns that it is draining.
asio::awaitable<void> Server::Drain() {
  service_.StartDraining();
  co_await WaitUntilNoneOpen(options_.drain_timeout);
  if (service_.num_open() > 0 && !ending_now_) {
    Log(fmt::format("drain time-out: cancelling {} requests", service_.num_open()));
    service_.CancelAll();
    co_await WaitUntilNoneOpen(kLastWords);
  }
  if (ending_now_) {
    http_.CloseAll();
  } else {
    http_.StopAccepting();
  }
  // A connection whose client does not close is closed.
  asio::steady_timer patience(io_, kLastWords);
  patience.async_wait([this](const boost::system::error_code& error) {
    if (!error) http_.CloseAll();
  });
  co_await http_.Drained();
  patience.cancel();
  // What was cancelled just now has its last events to come, and they are counted here.
  while (service_.num_owed() > 0) {
    patience.expires_after(kLook);
    co_await patience.async_wait(asio::use_awaitable);
  }
  boost::system::error_code ignored;
  signals_.clear(ignored);  // from now on a signal ends the process
  signals_.cancel(ignored);
  work_.reset();
}

asio::awaitable<void> Server::WaitUntilNoneOpen(std::chrono::milliseconds limit) {
  asio::steady_timer timer(io_);
  const auto end = std::chrono::steady_clock::now() + limit;
  while (service_.num_open() > 0 && !ending_now_ && std::chrono::steady_clock::now() < end) {
    timer.expires_after(kLook);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

void Server::Wait() {
  if (thread_.joinable()) thread_.join();
}

void Server::Log(std::string_view message) const {
  if (options_.on_message) options_.on_message(message);
}

}  // namespace quire
