// An HTTP/1.1 server over TCP, TLS or a unix socket, on Boost.Asio coroutines.
//
// Threads: all of one server - its functions, its handlers, its callbacks - runs on the io_context
// it was given, which one thread runs. Another thread reaches it by asio::post. Handlers of
// different connections interleave where they co_await; requests of one connection are handled one
// after another.
//
// A handler is called with a whole request, within the limits. What is wrong before that is
// answered by the server through HttpServerOptions::make_error: 400 malformed, 408 half-sent, 413
// body and 431 header too large, 417 unknown expectation, 501 unknown transfer coding, 505 unknown
// version, 503 too many connections or too much in bodies.
//
// While a handler is suspended the server watches the connection. When the client goes away
// (closes, or half-closes: an end of its stream counts), or CloseAll is called, the handler is
// cancelled: what it awaits is given asio's terminal cancellation, so that timers, channels and
// sockets throw boost::system::system_error(operation_aborted), and so does any later co_await. Let
// it unwind. What cannot be cancelled must be awaited in pieces. Bytes of later requests that come
// meanwhile are kept, up to max_header_bytes + 16 KiB; a client that sends more is not watched.
//
// GCC 12 destroys some temporaries of a co_await expression twice if they are made from a braced
// list. Name the object first: `HttpResponse r{...}; co_await responder.Send(std::move(r));`.
#ifndef QUIRE_HTTP_SERVER_H_
#define QUIRE_HTTP_SERVER_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/message.h"

namespace quire {

namespace asio = boost::asio;

namespace internal {
class HttpExchange;
class HttpServerState;
}  // namespace internal

// How a handler answers: Send, or Start, any number of Write, and Finish. A second answer is an
// InternalError. The functions throw boost::system::system_error if the connection breaks, or its
// reader takes nothing for write_timeout; let that unwind too.
class HttpResponder {
 public:
  explicit HttpResponder(internal::HttpExchange& exchange) : exchange_(exchange) {}
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  // The whole answer. To HEAD the same without its body.
  asio::awaitable<void> Send(HttpResponse response);

  // An answer in pieces: chunked, or ended by closing for HTTP/1.0. To HEAD no piece is sent.
  asio::awaitable<void> Start(int status, std::string content_type, HttpHeaders headers = {});
  // Returns when the kernel has taken all of it, so that a slow reader slows its handler, and no
  // more than this piece is in memory. An empty piece is nothing.
  asio::awaitable<void> Write(std::string_view piece);
  asio::awaitable<void> Finish();

  // The request's body is not needed any more: it is empty after this.
  void DropBody();

  // Whether the status is on its way, and cannot be changed.
  bool started() const;
  // Go into the AccessRecord: e.g. a request id, why it was refused, and numbers with their names.
  void set_note(std::string note);
  void set_error(std::string error);
  void set_value(std::string_view name, double value);

 private:
  internal::HttpExchange& exchange_;
};

// Both arguments live until the coroutine ends. If it throws, or ends without an answer: 500 by
// make_error if nothing was started; otherwise the connection is closed without the final chunk.
using HttpHandler = std::function<asio::awaitable<void>(const HttpRequest&, HttpResponder&)>;

enum class HttpOutcome {
  kAnswered,       // in full, by the handler
  kRefused,        // by make_error or check_header, before a handler was called
  kHandlerFailed,  // it threw, or did not answer in full
  kClientGone,     // before the answer was complete
  kWriteTimedOut,  // the client took nothing for write_timeout
  kServerClosed,   // CloseAll
};
std::string_view HttpOutcomeName(HttpOutcome outcome);  // "answered", "client_gone", ...

// One request that has ended.
struct AccessRecord {
  std::string remote{};
  std::string method{};  // "" if it did not get that far; so with path
  std::string path{};
  int status = 0;  // 0: nothing was sent
  HttpOutcome outcome = HttpOutcome::kAnswered;
  int64_t request_bytes = 0;             // of the body
  int64_t response_bytes = 0;            // of the body, without chunk framing
  std::chrono::microseconds duration{};  // from the whole request being here to its end
  std::string note{};                    // HttpResponder::set_note
  std::string error{};                   // what a handler threw, or a refusal's message
  std::vector<std::pair<std::string, double>> values{};  // HttpResponder::set_value
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // an IP address; "localhost" too
  int port = 0;                       // 0: any free one, see HttpServer::port
  std::string unix_socket{};          // if given, listens on this path and on no port

  std::string tls_certificate_file{};  // PEM, the chain from the server's up; both or neither
  std::string tls_key_file{};          // PEM

  size_t max_header_bytes = size_t{32} << 10;  // request line and headers
  size_t max_body_bytes = size_t{16} << 20;
  // Of all requests together, to the end of each one's handler, or DropBody. A body counts as far as it
  // has come; one that says it is longer than what is left is refused with its headers.
  size_t max_total_body_bytes = size_t{256} << 20;
  int max_connections = 1024;

  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte; TLS handshake
  std::chrono::milliseconds body_timeout{60'000};    // from the end of its headers
  std::chrono::milliseconds write_timeout{30'000};   // nothing taken for so long
  // How long a closing connection may wait for the client to close too, lest an answer be lost
  // with what the client still sends.
  std::chrono::milliseconds linger_timeout{1'000};

  // Asked once the headers of a request are here and its body is not: an answer refuses it, and the body
  // is not read. A handler checks again, since what has no body, or all of it, is not asked about.
  std::function<std::optional<HttpEarlyAnswer>(const HttpRequest&)> check_header{};
  // Shapes the server's own errors. Empty: the message as plain text.
  std::function<HttpResponse(int status, std::string_view message)> make_error{};
  // Called for each connection that is taken, before anything is read from it.
  std::function<void()> on_connection{};
  // What went wrong outside of any request, for the log: a connection that could not be taken.
  std::function<void(std::string_view message)> on_error{};
  // Called once for each request, after its end.
  std::function<void(const AccessRecord&)> on_access{};
};

class HttpServer {
 public:
  // Listens; connections are taken when `io` runs. Throws Error(kInvalidArgument) with the address
  // and the reason if that cannot be, or with the file if a certificate or key is missing,
  // unreadable or of another pair. A socket file that nobody listens on is replaced; any other file
  // is left, and is an Error.
  HttpServer(asio::io_context& io, HttpServerOptions options, HttpHandler handler);
  // CloseAll. `io` outlives the server. Cancelled handlers unwind when `io` next runs or is
  // destroyed, so what they use must live until then; or await Drained first.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // No more connections; those without a request are closed now, the others after the answer to the
  // request that they have begun to send. A unix socket's file is removed.
  void StopAccepting();
  // StopAccepting, and every connection is closed now, its handler cancelled.
  void CloseAll();
  // Returns when StopAccepting was called and no connection is left.
  asio::awaitable<void> Drained();

  int port() const;              // 0 for a unix socket
  std::string endpoint() const;  // "http://127.0.0.1:8080", "https://[::1]:8080", "unix:/run/quire"
  int num_connections() const;   // open ones
  int num_requests() const;      // handlers that run

 private:
  std::shared_ptr<internal::HttpServerState> state_;
};

}  // namespace quire

#endif  // QUIRE_HTTP_SERVER_H_
