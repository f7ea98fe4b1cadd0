#include "serve/server.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
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

// Of unknown fields; a client could send any number of them.
constexpr size_t kMaxUnknownNames = 1000;

}  // namespace

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      work_(io_.get_executor()),
      signals_(io_),
      service_(io_, MakeServiceOptions()),
      http_(io_, MakeHttpOptions(options_.http, service_, options_.on_message),
            [this](const HttpRequest& request, HttpResponder& responder) {
              return service_.Handle(request, responder);
            }),
      status_timer_(io_),
      endpoint_(http_.endpoint()),
      port_(http_.port()),
      thread_([this] { io_.run(); }) {
  if (options_.status_interval.count() > 0) {
    Post([this] { asio::co_spawn(io_, TellStatus(), asio::detached); });
  }
}

// What only this machine reaches is guarded against the pages that its browsers show; a unix socket is
// reached by none of them.
ServiceOptions Server::MakeServiceOptions() {
  ServiceOptions service = options_.service;
  service.origins.is_checked |=
      !service.origins.allowed_hosts.empty() ||
      (options_.http.unix_socket.empty() && IsLoopback(options_.http.address));
  if (options_.ignore_unknown_fields) {
    service.completions.limits.ignore_unknown = [this](const std::string& path) {
      Post([this, path] {
        if (unknown_fields_.size() >= kMaxUnknownNames) return;
        if (unknown_fields_.insert(path).second) Log(path + ": an unknown field is ignored");
      });
    };
  }
  return service;
}

asio::awaitable<void> Server::TellStatus() {
  int64_t tokens_before = 0;
  while (!draining_is_over_) {
    status_timer_.expires_after(options_.status_interval);
    co_await status_timer_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (!draining_is_over_) tokens_before = LogStatus(tokens_before);
  }
}

// One line of an interval in which something ran, waited or was drawn. Returns how many tokens were drawn
// so far.
int64_t Server::LogStatus(int64_t tokens_before) {
  const SchedulerSnapshot engine = service_.Snapshot();
  const SchedulerCounters& counters = engine.counters;
  const int64_t tokens = counters.output_tokens - tokens_before;
  if (counters.running == 0 && counters.waiting == 0 && tokens == 0) return counters.output_tokens;
  const double seconds = std::chrono::duration<double>(options_.status_interval).count();
  const auto in_use = static_cast<double>(engine.pages_in_use.raw());
  const auto pages =
      static_cast<double>((engine.pages_free + engine.pages_cached + engine.pages_in_use).raw());
  Log(fmt::format("status: {} running, {} waiting, {:.1f} tokens/s, {:.1f}% of the cache in use",
                  counters.running, counters.waiting, static_cast<double>(tokens) / seconds,
                  pages > 0 ? 100 * in_use / pages : 0));
  return counters.output_tokens;
}

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
  draining_is_over_ = true;
  status_timer_.cancel();
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
