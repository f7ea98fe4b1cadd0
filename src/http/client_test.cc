#include "http/client.h"

#include <gtest/gtest.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "http/test_server.h"
#include "http/url.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using std::chrono::milliseconds;
using testing::ErrorMessage;
using testing::Eventually;
using testing::TestFolder;
using testing::TestServer;

// A client on an io_context of its own, used as if it blocked.
class Blocking {
 public:
  explicit Blocking(HttpClientOptions options) : client(io, std::move(options)) {}

  HttpResponse Request(HttpClientRequest request, HttpClient::OnPiece on_piece = {}) {
    std::optional<HttpResponse> response;
    std::exception_ptr failure;
    asio::co_spawn(io, client.Request(std::move(request), std::move(on_piece)),
                   asio::bind_cancellation_slot(cancel.slot(),
                                                [&](std::exception_ptr error, HttpResponse result) {
                                                  failure = error;
                                                  response = std::move(result);
                                                }));
    io.restart();
    io.run();
    if (failure) std::rethrow_exception(failure);
    return std::move(*response);
  }

  asio::io_context io;
  HttpClient client;
  asio::cancellation_signal cancel;
};

std::string Url(const TestServer& test) {
  return "http://127.0.0.1:" + std::to_string(test.port());
}

TEST(HttpClientTest, KeepsItsConnection) {
  TestServer test;
  Blocking client({.url = Url(test)});
  for (int i = 0; i < 3; ++i) {
    const HttpResponse response = client.Request({"POST", "/echo?a", {{"X-Y", "z"}}, "body"});
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.content_type, "text/plain");
    EXPECT_EQ(response.headers.Find("x-kind"), "echo");
    EXPECT_EQ(response.body, "POST /echo?a body");
  }
  EXPECT_TRUE(client.client.connected());
  EXPECT_EQ(test.record(0).remote, test.record(2).remote);
  client.Request({"HEAD", "/echo"});
  EXPECT_EQ(client.Request({"GET", "/stream"}).body, "onetwothree");
  EXPECT_EQ(test.record(0).remote, test.record(4).remote);
  client.client.Close();
  client.Request({"GET", "/echo"});
  EXPECT_NE(test.record(0).remote, test.record(5).remote);
}

TEST(HttpClientTest, AClosedConnectionIsReplaced) {
  TestServer test({.idle_timeout = milliseconds(200)});
  Blocking client({.url = Url(test)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Request({"POST", "/echo", {}, "x"}).status, 200);
    EXPECT_TRUE(Eventually([&] {
      int open = -1;
      test.Do([&] { open = test.server().num_connections(); });
      return open == 0;
    }));
  }
}

TEST(HttpClientTest, PiecesOfGoodAnswersGoToTheCallback) {
  TestServer test;
  Blocking client({.url = Url(test) + "/"});
  std::string pieces;
  const auto keep = [&](std::string_view piece) { pieces += piece; };
  EXPECT_EQ(client.Request({"GET", "/stream"}, keep).body, "");
  EXPECT_EQ(pieces, "onetwothree");
  EXPECT_EQ(client.Request({"GET", "/throw"}, keep).body, "internal error\n");
  EXPECT_EQ(pieces, "onetwothree");
}

TEST(HttpClientTest, APieceComesWhenItWasSent) {
  TestServer test;
  Blocking client({.url = Url(test)});
  std::string pieces;
  client.Request({"GET", "/stream-wait"}, [&](std::string_view piece) {
    if (pieces.empty()) test.Release();  // without it the server would wait for ever
    pieces += piece;
  });
  EXPECT_EQ(pieces, "onetwothree");
}

TEST(HttpClientTest, ACallbackThatThrowsIsADisconnect) {
  TestServer test;
  Blocking client({.url = Url(test)});
  EXPECT_THROW(client.Request({"GET", "/stream-wait"},
                              [](std::string_view) { throw std::length_error("enough"); }),
               std::length_error);
  EXPECT_FALSE(client.client.connected());
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kClientGone);
}

TEST(HttpClientTest, CancellingIsADisconnect) {
  TestServer test;
  Blocking client({.url = Url(test)});
  asio::steady_timer timer(client.io, milliseconds(1));
  const std::function<void()> cancel_when_waiting = [&] {
    timer.async_wait([&](const auto&) {
      if (test.num_waiting() == 0) {
        timer.expires_after(milliseconds(1));
        return cancel_when_waiting();
      }
      client.cancel.emit(asio::cancellation_type::terminal);
    });
  };
  cancel_when_waiting();
  EXPECT_THROW(client.Request({"GET", "/wait"}), boost::system::system_error);
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kClientGone);
  EXPECT_EQ(test.num_cancelled(), 1);
}

TEST(HttpClientTest, WhatGoesWrongIsNamed) {
  TestServer test;
  const std::string url = Url(test);
  Blocking impatient({.url = url, .read_timeout = milliseconds(30)});
  EXPECT_EQ(ErrorMessage([&] {
              impatient.Request({"GET", "/wait"});
            }),
            url + ": reading: timed out");
  Blocking client({.url = url});
  EXPECT_EQ(ErrorMessage([&] {
              client.Request({"GET", "/throw-late"});
            }),
            url + ": the answer is cut short: partial message");
  Blocking small({.url = url, .max_body_bytes = 10});
  EXPECT_EQ(ErrorMessage(ErrorCode::kCapacityExceeded,
                         [&] {
                           small.Request({"GET", "/stream"});
                         }),
            url + ": the answer is longer than 10 bytes");
  const std::string injected = "a\r\nb";
  EXPECT_EQ(ErrorMessage([&] {
              client.Request({"GET", "/echo", {{"X", injected}}});
            }),
            "request header X: expected one line");
  Blocking plain({.url = "https://127.0.0.1:" + std::to_string(test.port())});
  EXPECT_TRUE(
      ErrorMessage([&] {
        plain.Request({"GET", "/echo"});
      }).starts_with("https://127.0.0.1:" + std::to_string(test.port()) + ": TLS handshake: "));
}

// Answers the first request with these bytes at once, and closes when the client does or is told to.
class ScriptedServer {
 public:
  enum class Then { kWait, kClose };
  ScriptedServer(std::string answer, Then then)
      : thread_([this, answer = std::move(answer), then] {
          asio::ip::tcp::socket socket = acceptor_.accept();
          boost::system::error_code ignored;
          std::string request;
          asio::read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n", ignored);
          asio::write(socket, asio::buffer(answer), ignored);
          char byte = 0;
          if (then == Then::kWait) socket.read_some(asio::buffer(&byte, 1), ignored);
        }) {}
  ~ScriptedServer() { thread_.join(); }
  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_{io_, {asio::ip::make_address("127.0.0.1"), 0}};
  std::thread thread_;
};

TEST(HttpClientTest, InformationalAnswersAreSkipped) {
  const std::string early = "HTTP/1.1 100 Continue\r\n\r\n";
  const std::string hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
  const std::string final_one = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
  for (const std::string& before : {early, hints, early + hints + early}) {
    ScriptedServer server(before + final_one, ScriptedServer::Then::kWait);
    Blocking client({.url = server.url(), .read_timeout = milliseconds(20'000)});
    const auto begin = std::chrono::steady_clock::now();
    const HttpResponse response = client.Request({"POST", "/", {}, "x"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              milliseconds(10'000));  // no read is awaited
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "hello");
    EXPECT_FALSE(response.headers.Find("Link").has_value());
    EXPECT_TRUE(client.client.connected());
  }
}

TEST(HttpClientTest, AnInformationalAnswerIsNotTheLast) {
  ScriptedServer server("HTTP/1.1 100 Continue\r\n\r\n", ScriptedServer::Then::kClose);
  Blocking client({.url = server.url()});
  EXPECT_EQ(ErrorMessage([&] {
              client.Request({"POST", "/", {}, "x"});
            }),
            server.url() + ": the answer is cut short: only an informational one came");
}

TEST(HttpClientTest, AServerThatIsNotThereIsNamed) {
  int port = 0;
  {
    TestServer test;
    port = test.port();
  }
  const std::string url = "http://127.0.0.1:" + std::to_string(port);
  Blocking client({.url = url});
  EXPECT_EQ(ErrorMessage([&] {
              client.Request({"GET", "/"});
            }),
            url + ": cannot connect: Connection refused");
  Blocking socket({.url = "unix:/nowhere/socket"});
  EXPECT_EQ(ErrorMessage([&] {
              socket.Request({"GET", "/"});
            }),
            "unix:/nowhere/socket: cannot connect: No such file or directory");
}

TEST(HttpClientTest, SpeaksOverAUnixSocket) {
  const TestFolder folder;
  TestServer test({.unix_socket = folder.Path("socket")});
  Blocking client({.url = "unix:" + folder.Path("socket")});
  EXPECT_EQ(client.Request({"GET", "/echo"}).body, "GET /echo? ");
}

TEST(HttpUrlTest, PartsAreFound) {
  const auto parts = [](std::string_view text) {
    const internal::HttpUrl url = internal::ParseHttpUrl(text);
    return url.host + " " + url.port + " " + url.prefix;
  };
  EXPECT_EQ(parts("http://a"), "a 80 ");
  EXPECT_EQ(parts("https://a.b/"), "a.b 443 ");
  EXPECT_EQ(parts("http://127.0.0.1:8080/v1/"), "127.0.0.1 8080 /v1");
  EXPECT_EQ(parts("http://[::1]:8080"), "::1 8080 ");
  EXPECT_EQ(parts("http://[::1]/x"), "::1 80 /x");
  for (const char* bad :
       {"", "a:80", "ftp://a", "http://", "http://:80", "http://a:", "http://a:x", "http://a:65536",
        "http://a b", "http://u@a", "unix:", "http://[::1", "http://a/?q"}) {
    EXPECT_TRUE(ErrorMessage([&] {
                  internal::ParseHttpUrl(bad);
                }).starts_with("url '" + std::string(bad) + "': expected "))
        << bad;
  }
}

class HttpTlsTest : public ::testing::Test {
 protected:
  HttpServerOptions Options() const {
    HttpServerOptions options;
    options.tls_certificate_file = certificate_;
    options.tls_key_file = key_;
    return options;
  }
  static std::string Https(const TestServer& test) {
    return "https://127.0.0.1:" + std::to_string(test.port());
  }

  const TestFolder folder_;
  const testing::TestCertificate pair_ = testing::MakeTestCertificate();
  const std::string certificate_ = folder_.Write("cert.pem", pair_.certificate);
  const std::string key_ = folder_.Write("key.pem", pair_.key);
};

TEST_F(HttpTlsTest, ServesBothWays) {
  TestServer test(Options());
  EXPECT_EQ(test.server().endpoint(), Https(test));
  Blocking client({.url = Https(test), .ca_file = certificate_});
  const std::string large(1'000'000, 'x');
  EXPECT_EQ(client.Request({"POST", "/echo", {}, large}).body, "POST /echo? " + large);
  std::string pieces;
  client.Request({"GET", "/stream"}, [&](std::string_view piece) { pieces += piece; });
  EXPECT_EQ(pieces, "onetwothree");
  EXPECT_EQ(client.Request({"GET", "/echo", {{"Connection", "close"}}}).status, 200);
  EXPECT_FALSE(client.client.connected());
}

TEST_F(HttpTlsTest, ADisconnectCancelsTheHandler) {
  TestServer test(Options());
  Blocking client({.url = Https(test), .ca_file = certificate_});
  EXPECT_THROW(client.Request({"GET", "/stream-wait"},
                              [](std::string_view) { throw std::length_error("enough"); }),
               std::length_error);
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kClientGone);
}

TEST_F(HttpTlsTest, AReaderThatTakesNothingIsLetGo) {
  HttpServerOptions options = Options();
  options.write_timeout = milliseconds(100);
  TestServer test(options);
  Blocking client({.url = Https(test), .ca_file = certificate_});
  EXPECT_ANY_THROW(client.Request({"GET", "/flood"}, [&](std::string_view) { test.record(0); }));
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kWriteTimedOut);
}

TEST_F(HttpTlsTest, AClientVerifiesUnlessToldNotTo) {
  TestServer test(Options());
  Blocking strict({.url = Https(test)});
  EXPECT_TRUE(ErrorMessage([&] {
                strict.Request({"GET", "/echo"});
              }).starts_with(Https(test) + ": TLS handshake: "));
  Blocking named(
      {.url = "https://localhost:" + std::to_string(test.port()), .ca_file = certificate_});
  EXPECT_NE(ErrorMessage([&] { named.Request({"GET", "/echo"}); }), "no error");
  Blocking lax({.url = Https(test), .verify_tls = false});
  EXPECT_EQ(lax.Request({"GET", "/echo"}).status, 200);
}

TEST_F(HttpTlsTest, AClientThatDoesNotSpeakTlsDoesNoHarm) {
  HttpServerOptions options = Options();
  options.header_timeout = milliseconds(300);
  TestServer test(options);
  testing::RawClient silent(test.port());
  testing::RawClient plain(test.port());
  plain.Send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  plain.ReadAll();
  silent.ReadAll();
  Blocking client({.url = Https(test), .ca_file = certificate_});
  EXPECT_EQ(client.Request({"GET", "/echo"}).status, 200);
  EXPECT_EQ(test.record(0).status, 200);  // the others are not in the log: they asked for nothing
}

TEST_F(HttpTlsTest, FilesThatAreNotAPairAreNamed) {
  asio::io_context io;
  const auto refused = [&](const std::string& certificate, const std::string& key) {
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] {
      HttpServerOptions options;
      options.tls_certificate_file = certificate;
      options.tls_key_file = key;
      HttpServer(io, options, {});
    });
  };
  EXPECT_EQ(refused(certificate_, ""),
            "TLS: expected a certificate file and a key file, got only the certificate");
  EXPECT_EQ(refused("", key_), "TLS: expected a certificate file and a key file, got only the key");
  EXPECT_EQ(refused("/nowhere", key_), "TLS certificate /nowhere: No such file or directory");
  EXPECT_EQ(refused(certificate_, "/nowhere"), "TLS key /nowhere: No such file or directory");
  const std::string empty = folder_.Write("empty", "");
  EXPECT_EQ(refused(empty, key_), "TLS certificate " + empty + ": the file is empty");
  EXPECT_TRUE(
      refused(key_, key_).starts_with("TLS certificate " + key_ + ": expected PEM certificates: "));
  const std::string other = folder_.Write("other.pem", testing::MakeTestCertificate().key);
  const std::string expected = "TLS key " + other +
                               ": expected the unencrypted PEM key of certificate " + certificate_ +
                               ": ";
  EXPECT_TRUE(refused(certificate_, other).starts_with(expected)) << refused(certificate_, other);
}

}  // namespace
}  // namespace quire
