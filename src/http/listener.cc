#include "http/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace quire::internal {
namespace {

using asio::ip::tcp;
using asio::local::stream_protocol;
using boost::system::error_code;

// A file in the way: gone after this, or an Error.
void RemoveStaleSocket(asio::io_context& io, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;  // whatever else is wrong, bind will say
  Require(S_ISSOCK(status.st_mode), "unix socket {}: a file that is not a socket is in the way",
          path);
  stream_protocol::socket probe(io);
  error_code error;
  probe.connect(stream_protocol::endpoint(path), error);
  Require(error == asio::error::connection_refused, "unix socket {}: {}", path,
          error ? error.message() : "another process listens there");
  Require(::unlink(path.c_str()) == 0, "unix socket {}: cannot remove the old one: {}", path,
          std::strerror(errno));
}

}  // namespace

Listener::Listener(asio::io_context& io, const HttpServerOptions& options) : acceptor_(io) {
  if (options.unix_socket.empty()) {
    ListenTcp(io, options);
  } else {
    ListenUnix(io, options.unix_socket);
  }
}

void Listener::ListenTcp(asio::io_context& io, const HttpServerOptions& options) {
  Require(options.port >= 0 && options.port <= 65535, "port: expected 0 to 65535, got {}",
          options.port);
  error_code error;
  const bool is_localhost = options.address == "localhost";
  const auto address =
      asio::ip::make_address(is_localhost ? "127.0.0.1" : options.address.c_str(), error);
  Require(!error, "address: expected an IP address, got '{}'", options.address);
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  // So that a restarted server need not wait for the old one's connections to be forgotten.
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  Require(!error, "cannot listen on address {}, port {}: {}{}", options.address, options.port,
          error.message(),
          error == asio::error::address_in_use ? "; take another port, or 0 for a free one" : "");
  port_ = acceptor.local_endpoint().port();
  endpoint_ = (options.tls_certificate_file.empty() ? "http://" : "https://") +
              EndpointText(acceptor.local_endpoint());
  acceptor_ = std::move(acceptor);
}

void Listener::ListenUnix(asio::io_context& io, const std::string& path) {
  constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
  Require(path.size() <= kMaxPath, "unix socket {}: expected a path of at most {} bytes, got {}",
          path, kMaxPath, path.size());
  RemoveStaleSocket(io, path);
  stream_protocol::acceptor acceptor(io);
  error_code error;
  acceptor.open(stream_protocol(), error);
  if (!error) acceptor.bind(stream_protocol::endpoint(path), error);
  Require(!error, "cannot listen on unix socket {}: {}", path, error.message());
  socket_file_ = path;
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  Require(!error, "cannot listen on unix socket {}: {}", path, error.message());
  endpoint_ = "unix:" + path;
  acceptor_ = std::move(acceptor);
}

void Listener::Close() {
  error_code ignored;
  acceptor_.close(ignored);
  const std::string path = std::exchange(socket_file_, {});
  if (path.empty()) return;
  struct stat status {};
  const bool is_ours =
      ::lstat(path.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  if (is_ours) ::unlink(path.c_str());
}

std::string EndpointText(const asio::generic::stream_protocol::endpoint& endpoint) {
  const int family = endpoint.protocol().family();
  if (family != AF_INET && family != AF_INET6) return "unix";
  tcp::endpoint inet;
  inet.resize(endpoint.size());
  std::memcpy(inet.data(), endpoint.data(), endpoint.size());
  const std::string host = inet.address().to_string();
  return fmt::format("{}:{}", inet.address().is_v6() ? "[" + host + "]" : host, inet.port());
}

}  // namespace quire::internal
