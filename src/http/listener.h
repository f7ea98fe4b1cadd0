// Where a server listens.
#ifndef QUIRE_HTTP_LISTENER_H_
#define QUIRE_HTTP_LISTENER_H_

#include <sys/types.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <string>

#include "http/server.h"

namespace quire::internal {

class Listener {
 public:
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

  // By address and port, or unix_socket. Throws Error(kInvalidArgument) naming them.
  Listener(asio::io_context& io, const HttpServerOptions& options);
  ~Listener() { Close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Removes the socket file too, if it is still the one made here.
  void Close();

  Acceptor& acceptor() { return acceptor_; }
  int port() const { return port_; }
  const std::string& endpoint() const { return endpoint_; }

 private:
  void ListenTcp(asio::io_context& io, const HttpServerOptions& options);
  void ListenUnix(asio::io_context& io, const std::string& path);

  Acceptor acceptor_;
  int port_ = 0;
  std::string endpoint_;
  std::string socket_file_;  // "" unless there is one to remove
  dev_t device_ = 0;         // of socket_file_, as is inode_
  ino_t inode_ = 0;
};

// "127.0.0.1:51234", "[::1]:51234", or "unix" for all that has no port.
std::string EndpointText(const asio::generic::stream_protocol::endpoint& endpoint);

}  // namespace quire::internal

#endif  // QUIRE_HTTP_LISTENER_H_
