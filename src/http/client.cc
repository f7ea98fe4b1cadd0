#include "http/client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/none.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "http/beast_view.h"
#include "http/transport.h"
#include "http/url.h"

namespace quire {
namespace internal {
namespace {

namespace http = boost::beast::http;
using asio::ip::tcp;
using Parser = http::response_parser<http::string_body>;

// Shared with its timer's callback, which may be under way when the attempt ends.
struct TcpAttempt {
  explicit TcpAttempt(asio::io_context& io) : resolver(io), socket(io), timer(io) {}
  void TimeOut() {
    timed_out = true;
    resolver.cancel();
    error_code ignored;
    socket.close(ignored);
  }

  tcp::resolver resolver;
  tcp::socket socket;
  asio::steady_timer timer;
  bool timed_out = false;
  bool ended = false;
};

}  // namespace

class HttpClientState {
 public:
  HttpClientState(asio::io_context& io, HttpClientOptions options)
      : io_(io), options_(std::move(options)), url_(ParseHttpUrl(options_.url)) {
    if (url_.scheme == HttpUrl::Scheme::kHttps) {
      tls_ = MakeClientTls(options_.ca_file, options_.verify_tls);
    }
  }
  ~HttpClientState() { Close(); }

  asio::awaitable<HttpResponse> Request(HttpClientRequest request, HttpClient::OnPiece on_piece) {
    const std::string bytes = Format(request);
    const bool is_head = request.method == "HEAD";
    const bool reused = connected();
    if (reused) {
      std::optional<HttpResponse> response = co_await Exchange(bytes, is_head, on_piece);
      if (response) co_return std::move(*response);
    }
    co_await Connect();
    std::optional<HttpResponse> response = co_await Exchange(bytes, is_head, on_piece);
    if (!response) Fail("the server closed the connection without an answer");
    co_return std::move(*response);
  }

  void Close() {
    if (transport_) transport_->Close();
    watchdog_.reset();
    transport_.reset();
    input_.clear();
  }
  bool connected() const { return transport_ != nullptr; }

 private:
  // Closes the connection unless an exchange came to its end: what else would be read is not the
  // answer to the next request.
  struct CloseUnlessWhole {
    HttpClientState* client;
    bool whole = false;
    ~CloseUnlessWhole() {
      if (!whole) client->Close();
    }
  };

  [[noreturn]] void Fail(const std::string& reason) const {
    throw Error(ErrorCode::kInvalidArgument, "{}: {}", options_.url, reason);
  }
  // Cancellation is the caller's own doing, and stays recognisable.
  void FailIf(const error_code& error, const char* action) const {
    if (!error) return;
    if (watchdog_ && watchdog_->expired()) Fail(fmt::format("{}: timed out", action));
    if (error == asio::error::operation_aborted) throw boost::system::system_error(error);
    Fail(fmt::format("{}: {}", action, error.message()));
  }

  std::string Format(const HttpClientRequest& request) const;
  asio::awaitable<void> Connect();
  asio::awaitable<Transport::Socket> Open(error_code& error);
  asio::awaitable<Transport::Socket> OpenTcp(error_code& error);
  // nullopt: the connection was closed before any byte of an answer.
  asio::awaitable<std::optional<HttpResponse>> Exchange(std::string_view bytes, bool is_head,
                                                        const HttpClient::OnPiece& on_piece);
  void Renew(std::optional<Parser>& parser, bool is_head) const;
  asio::awaitable<bool> ReadMore(Parser& parser);
  HttpResponse Collect(Parser& parser, std::string body) const;

  asio::io_context& io_;
  const HttpClientOptions options_;
  const HttpUrl url_;
  std::optional<asio::ssl::context> tls_;
  std::shared_ptr<Transport> transport_;
  std::optional<Watchdog> watchdog_;
  std::string input_;  // read, not yet parsed
};

std::string HttpClientState::Format(const HttpClientRequest& request) const {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\n", request.method, url_.prefix,
                                request.path, url_.authority);
  for (const auto& [name, value] : request.headers.fields()) {
    Require((name + value).find_first_of("\r\n") == std::string::npos,
            "request header {}: expected one line", name);
    out += fmt::format("{}: {}\r\n", name, value);
  }
  const bool has_body = !request.body.empty() || request.method == "POST";
  if (has_body) out += fmt::format("Content-Length: {}\r\n", request.body.size());
  out += "\r\n";
  out += request.body;
  return out;
}

asio::awaitable<Transport::Socket> HttpClientState::OpenTcp(error_code& error) {
  const auto attempt = std::make_shared<TcpAttempt>(io_);
  attempt->timer.expires_after(options_.connect_timeout);
  attempt->timer.async_wait([attempt](const error_code& cancelled) {
    if (!cancelled && !attempt->ended) attempt->TimeOut();
  });
  std::vector<tcp::endpoint> endpoints;
  const auto address = asio::ip::make_address(url_.host, error);
  if (!error) {
    endpoints.emplace_back(address, static_cast<uint16_t>(std::stoi(url_.port)));
  } else {
    const auto found = co_await attempt->resolver.async_resolve(url_.host, url_.port, To(error));
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  }
  if (!error) co_await asio::async_connect(attempt->socket, endpoints, To(error));
  attempt->ended = true;
  attempt->timer.cancel();
  if (attempt->timed_out) error = asio::error::timed_out;
  if (!error) attempt->socket.set_option(tcp::no_delay(true), error);
  co_return Transport::Socket(std::move(attempt->socket));
}

asio::awaitable<Transport::Socket> HttpClientState::Open(error_code& error) {
  if (url_.scheme != HttpUrl::Scheme::kUnix) co_return co_await OpenTcp(error);
  asio::local::stream_protocol::socket socket(io_);
  try {
    co_await socket.async_connect(asio::local::stream_protocol::endpoint(url_.socket_file),
                                  To(error));
  } catch (const boost::system::system_error& too_long) {
    error = too_long.code();
  }
  co_return Transport::Socket(std::move(socket));
}

asio::awaitable<void> HttpClientState::Connect() {
  Close();
  error_code error;
  Transport::Socket socket = co_await Open(error);
  FailIf(error, "cannot connect");
  transport_ = tls_ ? MakeTlsTransport(std::move(socket), *tls_, url_.host)
                    : MakePlainTransport(std::move(socket));
  watchdog_.emplace(io_.get_executor(), transport_);
  CloseUnlessWhole guard{this};
  watchdog_->Arm(options_.connect_timeout);
  co_await transport_->Handshake(error);
  FailIf(error, "TLS handshake");
  watchdog_->Disarm();
  guard.whole = true;
}

void HttpClientState::Renew(std::optional<Parser>& parser, bool is_head) const {
  parser.emplace();
  parser->eager(true);
  parser->skip(is_head);
  parser->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser->body_limit(boost::none);
}

// False at the end of the stream.
asio::awaitable<bool> HttpClientState::ReadMore(Parser& parser) {
  char piece[16384];
  error_code error;
  watchdog_->Arm(options_.read_timeout);
  const size_t n = co_await transport_->ReadSome(asio::buffer(piece), error);
  const bool ended = error == asio::error::eof || error == asio::error::connection_reset ||
                     error == asio::ssl::error::stream_truncated;
  if (!ended) FailIf(error, "reading");
  watchdog_->Disarm();
  input_.append(piece, n);
  if (ended && parser.got_some()) {
    parser.put_eof(error);
    FailIf(error, "the answer is cut short");
  }
  co_return !ended;
}

asio::awaitable<std::optional<HttpResponse>> HttpClientState::Exchange(
    std::string_view bytes, bool is_head, const HttpClient::OnPiece& on_piece) {
  CloseUnlessWhole guard{this};
  error_code error;
  co_await WriteAll(*transport_, *watchdog_, bytes, options_.write_timeout, error);
  // A server that refuses may answer and close while it is still being written to.
  const bool write_failed =
      error == asio::error::broken_pipe || error == asio::error::connection_reset;
  if (!write_failed) FailIf(error, "writing");

  std::optional<Parser> parser;
  Renew(parser, is_head);
  std::string body;
  bool any_came = false;
  while (!parser->is_done()) {
    // The final answer may have come together with an informational one before it.
    const bool is_read = any_came && !parser->got_some() && !input_.empty();
    if (!is_read) {  // a statement of its own: GCC 12 awaits the right side of && in any case
      const bool more = co_await ReadMore(*parser);
      if (!more && !parser->got_some()) {
        if (any_came) Fail("the answer is cut short: only an informational one came");
        co_return std::nullopt;
      }
    }
    any_came = true;
    if (parser->is_done()) break;
    input_.erase(0, parser->put(asio::buffer(input_), error));
    if (error != http::error::need_more) FailIf(error, "the answer is not HTTP");
    if (!parser->is_header_done()) continue;
    const int status = parser->get().result_int();
    if (status < 200) {
      if (parser->is_done()) Renew(parser, is_head);
      continue;
    }
    const std::string piece = std::exchange(parser->get().body(), {});
    if (on_piece && status < 300) {
      if (!piece.empty()) on_piece(piece);
      continue;
    }
    body += piece;
    if (body.size() > options_.max_body_bytes) {
      throw Error(ErrorCode::kCapacityExceeded, "{}: the answer is longer than {} bytes",
                  options_.url, options_.max_body_bytes);
    }
  }
  guard.whole = parser->keep_alive() && input_.empty() && !write_failed;
  co_return Collect(*parser, std::move(body));
}

HttpResponse HttpClientState::Collect(Parser& parser, std::string body) const {
  HttpResponse response;
  response.status = parser.get().result_int();
  response.body = std::move(body);
  for (const auto& field : parser.get()) {
    response.headers.Add(std::string(View(field.name_string())), std::string(View(field.value())));
  }
  response.content_type = response.headers.Find("Content-Type").value_or("");
  return response;
}

}  // namespace internal

HttpClient::HttpClient(asio::io_context& io, HttpClientOptions options)
    : state_(std::make_unique<internal::HttpClientState>(io, std::move(options))) {}

HttpClient::~HttpClient() = default;

asio::awaitable<HttpResponse> HttpClient::Request(HttpClientRequest request, OnPiece on_piece) {
  return state_->Request(std::move(request), std::move(on_piece));
}

void HttpClient::Close() { state_->Close(); }

bool HttpClient::connected() const { return state_->connected(); }

}  // namespace quire
