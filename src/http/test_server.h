// What the tests of this folder share: a server on a thread of its own, and a client that sends
// exactly the bytes it is told to.
#ifndef QUIRE_HTTP_TEST_SERVER_H_
#define QUIRE_HTTP_TEST_SERVER_H_

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http/server.h"

namespace quire::testing {

// Generous, because it only matters when a test fails.
inline constexpr std::chrono::seconds kPatience{30};

// Waits until condition() holds. False if it never does.
bool Eventually(const std::function<bool()>& condition);

// A blocking socket. Reads give up after kPatience.
class RawClient {
 public:
  explicit RawClient(int port);
  explicit RawClient(const std::string& unix_socket);
  RawClient(RawClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawClient() { Close(); }

  void Send(std::string_view bytes);
  // All up to and with `end`; all that came if the stream ended before.
  std::string ReadUntil(std::string_view end);
  // All that comes until the server closes; "(reset)" or "(nothing)" at the end if it does not.
  std::string ReadAll();
  // A response with Content-Length, and nothing behind it.
  std::string ReadResponse();
  void HalfClose();
  void Close();
  void Reset();  // not an orderly close

 private:
  bool ReadSome();

  int fd_;
  std::string input_;
  std::string end_;
};

// Its handler, by path:
//   /echo         the method, path, query and body
//   /wait         answers "released" when Release is called
//   /drop-wait    the same, and says how much is left of the body that it has dropped
//   /stream       "one", "two", "three" in pieces
//   /stream-wait  "one", and the rest when Release is called
//   /flood        pieces of 64 KiB without end
//   /throw  /throw-late  /silent  /unfinished  /inject  /own-length   misbehave
class TestServer {
 public:
  explicit TestServer(HttpServerOptions options = {});
  ~TestServer();

  HttpServer& server() { return *server_; }
  asio::io_context& io() { return io_; }
  int port() const { return port_; }

  // Runs fn on the server's thread, and waits for it.
  void Do(const std::function<void()>& fn);
  void Release();
  // Handlers of /wait and the like that are suspended, and those that were cancelled.
  int num_waiting();
  int num_cancelled();
  bool drained();
  std::vector<AccessRecord> records();
  // The n-th record, once it is there.
  AccessRecord record(size_t n);

 private:
  asio::awaitable<void> Handle(const HttpRequest& request, HttpResponder& responder);
  asio::awaitable<void> Misbehave(const HttpRequest& request, HttpResponder& responder);
  asio::awaitable<void> Wait();

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  asio::steady_timer released_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::mutex mutex_;  // over all below
  std::vector<AccessRecord> records_;
  int num_waiting_ = 0;
  int num_cancelled_ = 0;
  bool drained_ = false;
  std::thread thread_;
};

// A self-signed certificate for 127.0.0.1 and its key, as PEM.
struct TestCertificate {
  std::string certificate;
  std::string key;
};
TestCertificate MakeTestCertificate();

// A new folder, removed with all that is in it.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, std::string_view contents) const;

 private:
  std::string path_;
};

}  // namespace quire::testing

#endif  // QUIRE_HTTP_TEST_SERVER_H_
