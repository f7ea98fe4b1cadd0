// A small HTTP/1.1 client: one connection, one request at a time, kept alive between requests.
//
// Runs on the io_context it is given, which one thread runs. Cancelling a coroutine that awaits a
// request closes the connection: to the server, a disconnect.
#ifndef QUIRE_HTTP_CLIENT_H_
#define QUIRE_HTTP_CLIENT_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace quire {

namespace asio = boost::asio;

namespace internal {
class HttpClientState;
}  // namespace internal

struct HttpClientOptions {
  // "http://host[:port][/prefix]", "https://...", or "unix:/path/of/socket". A prefix is put before
  // every path.
  std::string url{};
  std::string ca_file{};   // https: trusted certificates (PEM); "": the system's
  bool verify_tls = true;  // https: check the certificate and its host name
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds read_timeout{300'000};  // nothing received for so long
  std::chrono::milliseconds write_timeout{30'000};  // nothing taken for so long
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_body_bytes = size_t{256} << 20;  // of a body that is kept whole
};

struct HttpClientRequest {
  std::string method = "GET";
  std::string path = "/";  // with any query
  HttpHeaders headers{};   // besides Host and Content-Length
  std::string body{};
};

class HttpClient {
 public:
  // Called with each piece of a body as it arrives. If it throws, the connection is closed and the
  // exception goes to who awaits the request.
  using OnPiece = std::function<void(std::string_view piece)>;

  // Throws Error(kInvalidArgument) if the URL cannot be read. Connects with the first request.
  HttpClient(asio::io_context& io, HttpClientOptions options);
  // No request may be under way.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The answer, whatever its status. With on_piece the body of a 2xx answer goes there and is not
  // in the result; other bodies are. `headers` has all headers, Content-Type too. A kept connection
  // that turns out to be closed before any byte of the answer came is replaced once. Throws
  // Error(kInvalidArgument) with the URL and the reason if there is no connection, it breaks, a
  // time-out passes, or the answer is not HTTP; and Error(kCapacityExceeded) for a longer body than
  // is allowed.
  asio::awaitable<HttpResponse> Request(HttpClientRequest request, OnPiece on_piece = {});

  // The next request connects anew.
  void Close();
  bool connected() const;

 private:
  std::unique_ptr<internal::HttpClientState> state_;
};

}  // namespace quire

#endif  // QUIRE_HTTP_CLIENT_H_
