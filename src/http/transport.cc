#include "http/transport.h"

#include <openssl/ssl.h>

#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quire::internal {
namespace {

using Socket = Transport::Socket;
namespace ssl = asio::ssl;

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  asio::awaitable<void> Handshake(error_code& error) override {
    error = {};
    co_return;
  }
  asio::awaitable<size_t> ReadSome(asio::mutable_buffer into, error_code& error) override {
    return socket_.async_read_some(into, To(error));
  }
  asio::awaitable<size_t> WriteSome(asio::const_buffer from, error_code& error) override {
    return socket_.async_write_some(from, To(error));
  }
  asio::awaitable<void> Shutdown(error_code& error) override {
    socket_.shutdown(Socket::shutdown_send, error);
    co_return;
  }
  void Close() override {
    error_code ignored;
    socket_.close(ignored);
  }
  bool is_open() const override { return socket_.is_open(); }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, ssl::context& context, const std::string& host)
      : stream_(std::move(socket), context),
        role_(host.empty() ? ssl::stream_base::server : ssl::stream_base::client) {
    if (host.empty()) return;
    SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
    stream_.set_verify_callback(ssl::host_name_verification(host));
  }

  asio::awaitable<void> Handshake(error_code& error) override {
    return stream_.async_handshake(role_, To(error));
  }
  asio::awaitable<size_t> ReadSome(asio::mutable_buffer into, error_code& error) override {
    return stream_.async_read_some(into, To(error));
  }
  asio::awaitable<size_t> WriteSome(asio::const_buffer from, error_code& error) override {
    // A record at a time, so that a slow reader's progress is seen.
    constexpr size_t kRecordBytes = 16384;
    return stream_.async_write_some(asio::buffer(from, kRecordBytes), To(error));
  }
  asio::awaitable<void> Shutdown(error_code& error) override {
    return stream_.async_shutdown(To(error));
  }
  void Close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
  }
  bool is_open() const override { return stream_.next_layer().is_open(); }

 private:
  ssl::stream<Socket> stream_;
  ssl::stream_base::handshake_type role_;
};

// OpenSSL's messages do not name the file, and some are silent about why.
void RequireReadable(const std::string& file, const char* what) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  const bool readable = in && in.peek() != std::ifstream::traits_type::eof();
  if (readable) return;
  const int code = errno;
  throw Error(ErrorCode::kInvalidArgument, "{} {}: {}", what, file,
              code != 0 ? std::generic_category().message(code) : "the file is empty");
}

}  // namespace

std::shared_ptr<Transport> MakePlainTransport(Socket socket) {
  return std::make_shared<PlainTransport>(std::move(socket));
}

std::shared_ptr<Transport> MakeTlsTransport(Socket socket, ssl::context& context,
                                            const std::string& host) {
  return std::make_shared<TlsTransport>(std::move(socket), context, host);
}

ssl::context MakeServerTls(const std::string& certificate_file, const std::string& key_file) {
  Require(!certificate_file.empty() && !key_file.empty(),
          "TLS: expected a certificate file and a key file, got only the {}",
          certificate_file.empty() ? "key" : "certificate");
  RequireReadable(certificate_file, "TLS certificate");
  RequireReadable(key_file, "TLS key");
  ssl::context context(ssl::context::tls_server);
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                      ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  // Without one OpenSSL asks on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; });
  error_code error;
  context.use_certificate_chain_file(certificate_file, error);
  Require(!error, "TLS certificate {}: expected PEM certificates: {}", certificate_file,
          error.message());
  context.use_private_key_file(key_file, ssl::context::pem, error);
  // With a certificate loaded, OpenSSL refuses here a key that is not its own.
  Require(!error && SSL_CTX_check_private_key(context.native_handle()) == 1,
          "TLS key {}: expected the unencrypted PEM key of certificate {}: {}", key_file,
          certificate_file, error.message());
  return context;
}

ssl::context MakeClientTls(const std::string& ca_file, bool verify) {
  ssl::context context(ssl::context::tls_client);
  context.set_verify_mode(verify ? ssl::verify_peer : ssl::verify_none);
  error_code error;
  if (ca_file.empty()) {
    context.set_default_verify_paths(error);
  } else {
    RequireReadable(ca_file, "TLS certificates");
    context.load_verify_file(ca_file, error);
    Require(!error, "TLS certificates {}: expected PEM certificates: {}", ca_file, error.message());
  }
  return context;
}

Watchdog::Watchdog(const asio::any_io_executor& executor, std::shared_ptr<Transport> transport)
    : state_(std::make_shared<State>(executor)), transport_(std::move(transport)) {}

void Watchdog::Arm(std::chrono::milliseconds timeout) {
  const uint64_t arming = ++state_->arming;
  state_->timer.expires_after(timeout);
  state_->timer.async_wait(
      [state = state_, transport = transport_, arming](const error_code& error) {
        if (error || state->arming != arming) return;
        state->expired = true;
        transport->Close();
      });
}

void Watchdog::Disarm() {
  ++state_->arming;
  state_->timer.cancel();
}

asio::awaitable<void> WriteAll(Transport& transport, Watchdog& watchdog, std::string_view bytes,
                               std::chrono::milliseconds timeout, error_code& error) {
  error = {};
  while (!bytes.empty() && !error) {
    watchdog.Arm(timeout);
    const size_t n = co_await transport.WriteSome(asio::buffer(bytes), error);
    bytes.remove_prefix(n);
  }
  watchdog.Disarm();
}

}  // namespace quire::internal
