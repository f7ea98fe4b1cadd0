// One connection of a server: reads ahead, takes requests one after another, runs their handlers.
#ifndef QUIRE_HTTP_CONNECTION_H_
#define QUIRE_HTTP_CONNECTION_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/body_budget.h"
#include "http/request_parser.h"
#include "http/server.h"
#include "http/transport.h"

namespace quire::internal {

class HttpConnection;

// A request and the answer to it, as far as it got.
class HttpExchange {
 public:
  HttpExchange(HttpConnection& connection, HttpRequest request, bool is_http_1_0, bool keep_alive,
               BodyShare body_share = {});

  asio::awaitable<void> Send(HttpResponse response);
  asio::awaitable<void> Start(int status, std::string content_type, HttpHeaders headers);
  asio::awaitable<void> Write(std::string_view piece);
  asio::awaitable<void> Finish();
  void DropBody();

  const HttpRequest& request() const { return request_; }
  bool started() const { return progress_ != Progress::kNone; }
  bool complete() const { return progress_ == Progress::kComplete; }
  // Whether another request may follow on this connection. Settled when the answer is started.
  bool keep_alive() const { return keep_alive_; }

  asio::cancellation_signal cancel;  // of the handler
  AccessRecord record;

 private:
  enum class Progress { kNone, kStreaming, kComplete };

  std::string Head(int status, std::string_view content_type, const HttpHeaders& headers,
                   std::string_view framing);

  HttpConnection& connection_;
  HttpRequest request_;
  BodyShare body_share_;
  bool is_http_1_0_;
  bool is_head_;
  bool keep_alive_;
  bool chunked_ = false;
  Progress progress_ = Progress::kNone;
};

// What a connection needs of its server.
class HttpServerState;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  enum class Admission { kServe, kRefuse };  // kRefuse: 503 and away

  HttpConnection(std::shared_ptr<HttpServerState> server, std::shared_ptr<Transport> transport,
                 std::string remote, Admission admission);

  // From the first byte to the last. Ends with the transport closed.
  asio::awaitable<void> Run();

  // Closes now, and cancels a handler that runs.
  void Abort();
  // Closes now, unless a request has begun.
  void CloseIfIdle();

  Admission admission() const { return admission_; }

  // For HttpExchange. Throws system_error if not all could be written.
  asio::awaitable<void> Write(std::string_view bytes);
  bool draining() const;

 private:
  enum class Next { kRequest, kLinger, kClose };
  enum class Input { kCame, kEnded, kTimedOut };
  using TimePoint = std::chrono::steady_clock::time_point;

  asio::awaitable<void> Serve();
  asio::awaitable<bool> Handshake();
  asio::awaitable<void> Pump();
  asio::awaitable<Input> WaitForInput(TimePoint deadline);
  asio::awaitable<Next> ServeOne();
  // True when the parser has a whole request or a refusal; false if there is nothing to answer.
  asio::awaitable<bool> ReadRequest(HttpRequestParser& parser, HttpRefusal& refusal);
  asio::awaitable<Next> Handle(std::shared_ptr<HttpExchange> exchange);
  asio::awaitable<void> CallHandler(std::shared_ptr<HttpExchange> exchange);
  asio::awaitable<void> Refuse(const HttpRequest& request, const HttpRefusal& refusal);
  asio::awaitable<void> AnswerFailure(HttpExchange& exchange);
  asio::awaitable<void> Linger();
  HttpOutcome FailureOutcome() const;

  std::shared_ptr<HttpServerState> server_;
  std::shared_ptr<Transport> transport_;
  std::string remote_;
  Admission admission_;
  Watchdog write_watchdog_;

  // Filled by Pump, emptied by ReadRequest. The two wake each other by cancelling timers.
  std::string input_;
  std::vector<char> read_buffer_;
  asio::steady_timer input_came_;
  asio::steady_timer room_made_;
  bool input_ended_ = false;
  bool discard_input_ = false;
  bool write_failed_ = false;

  bool idle_ = true;                        // no byte of a request is here
  bool aborted_ = false;                    // by the server
  std::shared_ptr<HttpExchange> handling_;  // whose handler runs
};

}  // namespace quire::internal

#endif  // QUIRE_HTTP_CONNECTION_H_
