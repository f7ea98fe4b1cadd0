#include "http/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <utility>

#include "base/error.h"
#include "http/server_state.h"

namespace quire::internal {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;

std::string Message(const std::exception_ptr& error) {
  if (!error) return "the handler did not answer in full";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpServerState> server,
                               std::shared_ptr<Transport> transport, std::string remote,
                               Admission admission)
    : server_(std::move(server)),
      transport_(std::move(transport)),
      remote_(std::move(remote)),
      admission_(admission),
      write_watchdog_(server_->executor(), transport_),
      read_buffer_(kReadBytes),
      input_came_(server_->executor()),
      room_made_(server_->executor()) {}

bool HttpConnection::draining() const { return server_->stopping(); }

void HttpConnection::Abort() {
  aborted_ = true;
  transport_->Close();
  input_came_.cancel();
  room_made_.cancel();
  if (handling_) handling_->cancel.emit(asio::cancellation_type::terminal);
}

void HttpConnection::CloseIfIdle() {
  if (idle_) Abort();
}

asio::awaitable<void> HttpConnection::Run() {
  const auto self = shared_from_this();
  try {
    co_await Serve();
  } catch (const std::exception&) {
    // A write failed: the client is gone, and there is nobody to tell. Or no memory for a request:
    // the others go on.
  }
  Abort();
  server_->Remove(this);
}

asio::awaitable<void> HttpConnection::Serve() {
  if (!co_await Handshake()) co_return;
  asio::co_spawn(
      server_->executor(), [self = shared_from_this()] { return self->Pump(); }, asio::detached);
  Next next = Next::kRequest;
  if (admission_ == Admission::kRefuse) {
    idle_ = false;
    HttpRequest unread;
    unread.remote = remote_;
    const HttpRefusal refusal{503, fmt::format("too many connections: {} is the most this server "
                                               "takes",
                                               server_->options().max_connections)};
    co_await Refuse(unread, refusal);
    next = Next::kLinger;
  }
  while (next == Next::kRequest) next = co_await ServeOne();
  if (next == Next::kLinger) co_await Linger();
}

asio::awaitable<bool> HttpConnection::Handshake() {
  Watchdog watchdog(server_->executor(), transport_);
  watchdog.Arm(server_->options().header_timeout);
  error_code error;
  co_await transport_->Handshake(error);
  co_return !error;
}

// Reads always, so that the end of the stream is seen while a handler runs, and the read is never
// cancelled, which would lose bytes under TLS. Bounded: with enough read ahead it waits.
asio::awaitable<void> HttpConnection::Pump() {
  const auto self = shared_from_this();
  const size_t most = server_->options().max_header_bytes + kReadBytes;
  error_code error;
  while (!error && transport_->is_open()) {
    if (input_.size() >= most && !discard_input_) {
      room_made_.expires_at(kNever);
      co_await room_made_.async_wait(kQuietly);
      continue;
    }
    const size_t n = co_await transport_->ReadSome(asio::buffer(read_buffer_), error);
    if (!discard_input_) input_.append(read_buffer_.data(), n);
    input_came_.cancel();
  }
  input_ended_ = true;
  input_came_.cancel();
  if (handling_) handling_->cancel.emit(asio::cancellation_type::terminal);
}

asio::awaitable<HttpConnection::Input> HttpConnection::WaitForInput(TimePoint deadline) {
  if (input_ended_ || !transport_->is_open()) co_return Input::kEnded;
  input_came_.expires_at(deadline);
  const auto [error] = co_await input_came_.async_wait(kQuietly);
  co_return error ? Input::kCame : Input::kTimedOut;
}

asio::awaitable<bool> HttpConnection::ReadRequest(HttpRequestParser& parser, HttpRefusal& refusal) {
  const HttpServerOptions& options = server_->options();
  const auto after = [](auto timeout) { return std::chrono::steady_clock::now() + timeout; };
  TimePoint deadline = after(options.idle_timeout);
  bool in_body = false;
  while (!parser.done() && !parser.refusal()) {
    const size_t taken = parser.Put(input_);
    input_.erase(0, taken);
    room_made_.cancel();
    if (idle_ && parser.begun()) {
      idle_ = false;
      deadline = after(options.header_timeout);
    }
    if (parser.done() || parser.refusal()) break;
    if (!in_body && parser.header_done()) {
      in_body = true;
      deadline = after(options.body_timeout);
      if (options.check_header) refusal.answer = options.check_header(parser.partial());
      if (refusal.answer) co_return true;
      if (parser.expects_continue()) {
        co_await Write("HTTP/1.1 100 Continue\r\n\r\n");
        continue;  // what came meanwhile woke nobody
      }
    }
    if (input_.size() > options.max_header_bytes) {
      // A line of the chunked coding that does not end.
      refusal = {400, "malformed HTTP request: a chunk's header or trailer is too long"};
      co_return true;
    }
    const Input input = co_await WaitForInput(deadline);
    if (input == Input::kEnded || (input == Input::kTimedOut && idle_)) co_return false;
    if (input == Input::kTimedOut) {
      refusal = {408,
                 in_body ? "the body did not come in time" : "the headers did not come in time"};
      co_return true;
    }
  }
  if (parser.refusal()) refusal = *parser.refusal();
  co_return true;
}

asio::awaitable<HttpConnection::Next> HttpConnection::ServeOne() {
  idle_ = true;
  if (draining()) co_return Next::kLinger;  // the client knows by "Connection: close"
  BodyShare share(server_->body_budget());
  HttpRequestParser parser(server_->options().max_header_bytes, server_->options().max_body_bytes,
                           [&share](size_t bytes) { return share.Resize(bytes); });
  HttpRefusal refusal;
  if (!co_await ReadRequest(parser, refusal)) co_return Next::kClose;
  if (refusal.status != 0 || refusal.answer) {
    HttpRequest request = parser.partial();
    request.remote = remote_;
    co_await Refuse(request, refusal);
    co_return Next::kLinger;  // where the next request would begin is not known
  }
  HttpRequest request = parser.Take();
  request.remote = remote_;
  share.Resize(request.body.size());  // less than was asked for while its chunks came
  co_return co_await Handle(std::make_shared<HttpExchange>(
      *this, std::move(request), parser.is_http_1_0(), parser.keep_alive(), std::move(share)));
}

// A coroutine of its own, whose frame keeps alive what the handler refers to.
asio::awaitable<void> HttpConnection::CallHandler(std::shared_ptr<HttpExchange> exchange) {
  const auto self = shared_from_this();
  HttpResponder responder(*exchange);
  co_await server_->handler()(exchange->request(), responder);
}

asio::awaitable<HttpConnection::Next> HttpConnection::Handle(
    std::shared_ptr<HttpExchange> exchange) {
  if (input_ended_) co_return Next::kClose;
  const auto begin = std::chrono::steady_clock::now();
  handling_ = exchange;
  ++server_->num_requests;
  const auto [error] =
      co_await asio::co_spawn(server_->executor(), CallHandler(exchange),
                              asio::bind_cancellation_slot(exchange->cancel.slot(), kQuietly));
  --server_->num_requests;
  handling_ = nullptr;

  AccessRecord& record = exchange->record;
  bool broken = false;
  if (error || !exchange->complete()) {
    record.outcome = FailureOutcome();
    record.error = Message(error);
    if (record.outcome != HttpOutcome::kHandlerFailed || exchange->started()) {
      broken = true;
    } else {
      co_await AnswerFailure(*exchange);
    }
  }
  record.duration = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - begin);
  server_->Record(record);
  if (broken) co_return Next::kClose;
  co_return exchange->keep_alive() ? Next::kRequest : Next::kLinger;
}

HttpOutcome HttpConnection::FailureOutcome() const {
  if (aborted_) return HttpOutcome::kServerClosed;
  if (write_watchdog_.expired()) return HttpOutcome::kWriteTimedOut;
  if (input_ended_ || write_failed_) return HttpOutcome::kClientGone;
  return HttpOutcome::kHandlerFailed;
}

asio::awaitable<void> HttpConnection::AnswerFailure(HttpExchange& exchange) {
  try {
    HttpResponse response = server_->MakeError(500, "internal error");
    co_await exchange.Send(std::move(response));
  } catch (const std::exception&) {
    transport_->Close();  // the record is still to be written; the loop sees the closed transport
  }
}

asio::awaitable<void> HttpConnection::Refuse(const HttpRequest& request,
                                             const HttpRefusal& refusal) {
  HttpExchange exchange(*this, request, /*is_http_1_0=*/false, /*keep_alive=*/false);
  exchange.record.outcome = HttpOutcome::kRefused;
  exchange.record.error = refusal.answer ? refusal.answer->error : refusal.message;
  if (refusal.answer) exchange.record.note = refusal.answer->note;
  try {
    HttpResponse response = refusal.answer ? refusal.answer->response
                                           : server_->MakeError(refusal.status, refusal.message);
    co_await exchange.Send(std::move(response));
  } catch (const std::exception&) {
    transport_->Close();
  }
  server_->Record(exchange.record);
}

// Closing at once, with bytes of the client unread, resets the connection, and the client may lose
// an answer that it has not read yet. So: say that nothing more comes, and read until it closes.
asio::awaitable<void> HttpConnection::Linger() {
  discard_input_ = true;
  input_.clear();
  room_made_.cancel();
  Watchdog watchdog(server_->executor(), transport_);
  watchdog.Arm(server_->options().linger_timeout);
  error_code ignored;
  co_await transport_->Shutdown(ignored);
  while (!input_ended_ && transport_->is_open()) co_await WaitForInput(kNever);
}

// All of it or system_error. Whoever writes stops writing, so the watchdog's expiry is the only
// trace of why.
asio::awaitable<void> HttpConnection::Write(std::string_view bytes) {
  error_code error;
  co_await WriteAll(*transport_, write_watchdog_, bytes, server_->options().write_timeout, error);
  if (!error) co_return;
  write_failed_ = true;
  throw boost::system::system_error(error);
}

}  // namespace quire::internal
