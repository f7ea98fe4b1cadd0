// One end of a connection - TCP, unix socket, or TLS over them - and the time-outs on it.
#ifndef QUIRE_HTTP_TRANSPORT_H_
#define QUIRE_HTTP_TRANSPORT_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

namespace quire {

namespace asio = boost::asio;

namespace internal {

using boost::system::error_code;

// Awaits an operation, and leaves in `error` how it ended.
inline auto To(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

// At most one read and one write at a time. Lives until its operations have ended; Close ends them.
class Transport {
 public:
  using Socket = asio::generic::stream_protocol::socket;

  virtual ~Transport() = default;

  virtual asio::awaitable<void> Handshake(error_code& error) = 0;
  virtual asio::awaitable<size_t> ReadSome(asio::mutable_buffer into, error_code& error) = 0;
  virtual asio::awaitable<size_t> WriteSome(asio::const_buffer from, error_code& error) = 0;
  // Tells the peer that nothing more comes.
  virtual asio::awaitable<void> Shutdown(error_code& error) = 0;
  virtual void Close() = 0;
  virtual bool is_open() const = 0;
};

std::shared_ptr<Transport> MakePlainTransport(Transport::Socket socket);
// `context` outlives it. host: "" for a server; for a client the name that the certificate must be
// of, unless the context does not verify.
std::shared_ptr<Transport> MakeTlsTransport(Transport::Socket socket, asio::ssl::context& context,
                                            const std::string& host);

// Throw Error(kInvalidArgument) naming the file and what is wrong with it.
asio::ssl::context MakeServerTls(const std::string& certificate_file, const std::string& key_file);
asio::ssl::context MakeClientTls(const std::string& ca_file, bool verify);

// Closes a transport that stays armed for too long.
class Watchdog {
 public:
  Watchdog(const asio::any_io_executor& executor, std::shared_ptr<Transport> transport);
  ~Watchdog() { Disarm(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void Arm(std::chrono::milliseconds timeout);
  void Disarm();
  bool expired() const { return state_->expired; }

 private:
  struct State {
    explicit State(const asio::any_io_executor& executor) : timer(executor) {}
    asio::steady_timer timer;
    uint64_t arming = 0;  // an expiry under way when it is disarmed belongs to an older one
    bool expired = false;
  };

  std::shared_ptr<State> state_;
  std::shared_ptr<Transport> transport_;
};

// Writes all. `timeout` is for each piece that the kernel takes.
asio::awaitable<void> WriteAll(Transport& transport, Watchdog& watchdog, std::string_view bytes,
                               std::chrono::milliseconds timeout, error_code& error);

}  // namespace internal
}  // namespace quire

#endif  // QUIRE_HTTP_TRANSPORT_H_
