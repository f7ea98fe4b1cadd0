// What a server does with clients that ask too much, too slowly, or for too long; and how it ends.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "http/server.h"
#include "http/test_server.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using std::chrono::milliseconds;
using testing::ErrorMessage;
using testing::Eventually;
using testing::RawClient;
using testing::TestFolder;
using testing::TestServer;

constexpr const char* kGetEcho = "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr const char* kGetWait = "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n";

// The server's own errors, so that the tests see who made an answer.
HttpServerOptions Shaped() {
  HttpServerOptions options;
  options.max_header_bytes = 1000;
  options.max_body_bytes = 1000;
  options.make_error = [](int status, std::string_view message) {
    HttpResponse response;
    response.status = status;
    response.content_type = "application/json";
    response.body = "shaped: " + std::string(message);
    return response;
  };
  return options;
}

// The status of a refusal after which the server closes.
int RefusedWith(RawClient& client) {
  const std::string response = client.ReadAll();
  EXPECT_NE(response.find("Connection: close\r\n"), std::string::npos) << response;
  EXPECT_NE(response.find("\r\n\r\nshaped: "), std::string::npos) << response;
  return response.starts_with("HTTP/1.1 ") ? std::stoi(response.substr(9, 3)) : 0;
}

TEST(HttpLimitsTest, WhatIsWrongIsRefusedInTheShapeThatWasAskedFor) {
  TestServer test(Shaped());
  const std::vector<std::pair<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413},
      {"GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(2000, 'x') + "\r\n\r\n", 431},
      {"GET /" + std::string(2000, 'x') + " HTTP/1.1\r\nHost: h\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
           std::string(2000, 'x'),
       400},
  };
  for (const auto& [request, status] : cases) {
    RawClient client(test.port());
    client.Send(request);
    EXPECT_EQ(RefusedWith(client), status) << request.substr(0, 60);
  }
  EXPECT_EQ(test.record(4).outcome, HttpOutcome::kRefused);
  EXPECT_EQ(test.record(4).method, "");
  EXPECT_EQ(test.record(3).path, "/");
}

// The client gets its answer even if it is still sending, and so must not be reset.
TEST(HttpLimitsTest, AConnectionThatCannotBeTakenDoesNotEndAccepting) {
  HttpServerOptions options = Shaped();
  auto num_taken = std::make_shared<std::atomic<int>>(0);
  auto errors = std::make_shared<std::atomic<int>>(0);
  options.on_connection = [num_taken] {
    if (++*num_taken <= 2) throw std::runtime_error("no memory");
  };
  options.on_error = [errors](std::string_view message) {
    EXPECT_EQ(message, "a connection could not be taken: no memory");
    ++*errors;
  };
  TestServer test(std::move(options));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(RawClient(test.port()).ReadAll().find("HTTP"), std::string::npos);
  RawClient client(test.port());
  client.Send(kGetEcho);
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
  EXPECT_EQ(*errors, 2);
}

TEST(HttpLimitsTest, AnOversizeBodyIsAnsweredWhileItIsBeingSent) {
  TestServer test(Shaped());
  RawClient client(test.port());
  client.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000000\r\n\r\n");
  client.Send(std::string(2'000'000, 'x'));
  client.HalfClose();
  EXPECT_EQ(RefusedWith(client), 413);
}

TEST(HttpLimitsTest, AFloodOfHeadersIsRefused) {
  TestServer test(Shaped());
  RawClient client(test.port());
  client.Send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 10'000; ++i) client.Send("X-" + std::to_string(i) + ": y\r\n");
  client.HalfClose();
  EXPECT_EQ(RefusedWith(client), 431);
}

TEST(HttpLimitsTest, AHalfSentRequestTimesOut) {
  HttpServerOptions options = Shaped();
  options.header_timeout = milliseconds(50);
  options.body_timeout = milliseconds(50);
  TestServer test(options);
  for (const char* part : {"G", "GET / HTTP/1.1\r\nHost:",
                           "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc"}) {
    RawClient client(test.port());
    client.Send(part);
    EXPECT_EQ(RefusedWith(client), 408) << part;
  }
}

// The time is for the whole header: a byte now and then does not buy more.
TEST(HttpLimitsTest, ATrickleTimesOutToo) {
  HttpServerOptions options = Shaped();
  options.header_timeout = milliseconds(60);
  TestServer test(options);
  RawClient client(test.port());
  client.Send("GET / HTTP/1.1\r\n");
  std::thread trickle([&] {
    while (test.records().empty()) {
      client.Send("X: y\r\n");
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  EXPECT_EQ(test.record(0).status, 408);
  trickle.join();
}

TEST(HttpLimitsTest, AnIdleConnectionIsClosedWithoutAWord) {
  TestServer test({.idle_timeout = milliseconds(300)});
  RawClient fresh(test.port());
  EXPECT_EQ(fresh.ReadAll(), "");
  RawClient used(test.port());
  used.Send(kGetEcho);
  used.ReadResponse();
  EXPECT_EQ(used.ReadAll(), "");
  EXPECT_EQ(test.records().size(), 1u);
}

TEST(HttpLimitsTest, AReaderThatTakesNothingIsLetGo) {
  TestServer test({.write_timeout = milliseconds(100)});
  RawClient client(test.port());
  client.Send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  const AccessRecord record = test.record(0);
  EXPECT_EQ(record.outcome, HttpOutcome::kWriteTimedOut);
  // The kernel's buffers hold some megabytes; the flood has no end.
  EXPECT_LT(record.response_bytes, 100'000'000);
  RawClient other(test.port());
  other.Send(kGetEcho);
  EXPECT_TRUE(other.ReadResponse().starts_with("HTTP/1.1 200"));
}

TEST(HttpLimitsTest, ASlowReaderThatTakesSomethingIsServed) {
  TestServer test({.write_timeout = milliseconds(2000)});
  RawClient client(test.port());
  client.Send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(client.ReadUntil("\r\n10000\r\n").ends_with("\r\n10000\r\n"));
  }
  client.Close();
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kClientGone);
}

TEST(HttpLimitsTest, TooManyConnectionsAreToldSo) {
  HttpServerOptions options = Shaped();
  options.max_connections = 3;
  options.linger_timeout = milliseconds(200);
  TestServer test(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(test.port());
    clients.back().Send(kGetEcho);
    EXPECT_TRUE(clients.back().ReadResponse().starts_with("HTTP/1.1 200"));
  }
  RawClient refused(test.port());
  EXPECT_EQ(RefusedWith(refused), 503);
  test.Do([&] { EXPECT_EQ(test.server().num_connections(), 3); });

  // A flood of them is not answered, but does no harm.
  std::vector<RawClient> flood;
  for (int i = 0; i < 100; ++i) flood.emplace_back(test.port());
  clients[0].Send(kGetEcho);
  EXPECT_TRUE(clients[0].ReadResponse().starts_with("HTTP/1.1 200"));
  flood.clear();

  clients.pop_back();
  EXPECT_TRUE(Eventually([&] {
    RawClient next(test.port());
    next.Send(kGetEcho);
    return next.ReadResponse().starts_with("HTTP/1.1 200");
  }));
}

std::string PostHeader(const std::string& path, const std::string& more) {
  return "POST " + path + " HTTP/1.1\r\nHost: h\r\n" + more + "\r\n";
}

std::string PostOf(const std::string& path, size_t size) {
  return PostHeader(path, "Content-Length: " + std::to_string(size) + "\r\n") +
         std::string(size, 'x');
}

HttpServerOptions WithBodyBudget(size_t bytes) {
  HttpServerOptions options = Shaped();
  options.max_total_body_bytes = bytes;
  return options;
}

TEST(HttpLimitsTest, BodiesOfAllRequestsHaveALimit) {
  TestServer test(WithBodyBudget(1500));
  RawClient holds(test.port());
  holds.Send(PostOf("/wait", 1000));
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 1; }));

  // Refused by what it says of its length, before any of it is sent.
  for (const char* more : {"", "Expect: 100-continue\r\n"}) {
    RawClient refused(test.port());
    refused.Send(PostHeader("/echo", "Content-Length: 501\r\n" + std::string(more)));
    EXPECT_EQ(RefusedWith(refused), 503) << more;
  }
  EXPECT_EQ(
      test.record(0).error,
      "there is no room for a body of 501 bytes beside those of the other requests: ask again "
      "later");
  RawClient fits(test.port());
  for (int i = 0; i < 3; ++i) {  // it is given back each time
    fits.Send(PostOf("/echo", 500));
    EXPECT_TRUE(fits.ReadResponse().ends_with("xx"));
    fits.Send(kGetEcho);
    EXPECT_TRUE(fits.ReadResponse().starts_with("HTTP/1.1 200"));
  }
  test.Release();
  EXPECT_TRUE(holds.ReadResponse().ends_with("released"));
  fits.Send(PostOf("/echo", 1000));
  EXPECT_TRUE(fits.ReadResponse().ends_with("xx"));
}

TEST(HttpLimitsTest, ABodyThatDoesNotComeTakesNoRoom) {
  TestServer test(WithBodyBudget(1000));
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 16; ++i) {
    idle.push_back(std::make_unique<RawClient>(test.port()));
    idle.back()->Send(PostHeader("/echo", "Content-Length: 1000\r\n"));
  }
  RawClient client(test.port());
  for (int i = 0; i < 3; ++i) {
    client.Send(PostOf("/echo", 1000));
    EXPECT_TRUE(client.ReadResponse().ends_with("xx"));
  }
  // What has come does.
  idle.front()->Send(std::string(600, 'x'));
  EXPECT_TRUE(Eventually([&] {
    RawClient other(test.port());
    other.Send(PostOf("/echo", 401));
    return other.ReadResponse().starts_with("HTTP/1.1 503");
  }));
  idle.front()->Send(std::string(400, 'x'));
  EXPECT_TRUE(idle.front()->ReadResponse().ends_with("xx"));
}

TEST(HttpLimitsTest, WhatTheHeaderDecidesIsAnsweredBeforeTheBody) {
  HttpServerOptions options = Shaped();
  options.check_header = [](const HttpRequest& request) -> std::optional<HttpEarlyAnswer> {
    if (request.path != "/forbidden") return std::nullopt;
    HttpEarlyAnswer answer;
    answer.response.status = 401;
    answer.response.body = "shaped: no";
    answer.note = "the note";
    answer.error = "the reason";
    return answer;
  };
  TestServer test(std::move(options));
  for (const char* more : {"Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n",
                           "Content-Length: 1000\r\nExpect: 100-continue\r\n"}) {
    RawClient refused(test.port());
    refused.Send(PostHeader("/forbidden", more));
    EXPECT_EQ(RefusedWith(refused), 401) << more;
  }
  const AccessRecord record = test.record(0);
  EXPECT_EQ(record.outcome, HttpOutcome::kRefused);
  EXPECT_EQ(record.status, 401);
  EXPECT_EQ(record.note + ", " + record.error, "the note, the reason");
  RawClient fine(test.port());
  fine.Send(PostOf("/echo", 100));
  EXPECT_TRUE(fine.ReadResponse().ends_with("xx"));
}

TEST(HttpLimitsTest, AChunkedBodyCountsAsItGrows) {
  TestServer test(WithBodyBudget(1500));
  RawClient holds(test.port());
  holds.Send(PostOf("/wait", 1000));
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 1; }));
  const std::string header = PostHeader("/echo", "Transfer-Encoding: chunked\r\n");
  const std::string chunk = "64\r\n" + std::string(100, 'x') + "\r\n";
  RawClient small(test.port());
  small.Send(header + chunk + chunk + "0\r\n\r\n");
  EXPECT_TRUE(small.ReadResponse().starts_with("HTTP/1.1 200"));
  RawClient large(test.port());
  large.Send(header);
  for (int i = 0; i < 6; ++i) large.Send(chunk);
  EXPECT_EQ(RefusedWith(large), 503);
}

TEST(HttpLimitsTest, ABodyIsGivenBackByWhoNeedsItNoMore) {
  TestServer test(WithBodyBudget(1000));
  const auto status = [&] {
    RawClient client(test.port());
    client.Send(PostOf("/echo", 1000));
    const std::string response = client.ReadResponse();
    return response.substr(0, 12);
  };
  RawClient half_sent(test.port());
  half_sent.Send(PostHeader("/echo", "Content-Length: 1000\r\n") + "begin");
  EXPECT_TRUE(Eventually([&] { return status() == "HTTP/1.1 503"; }));
  half_sent.Close();
  EXPECT_TRUE(Eventually([&] { return status() == "HTTP/1.1 200"; }));

  RawClient dropped(test.port());
  dropped.Send(PostOf("/drop-wait", 1000));
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 1; }));
  EXPECT_EQ(status(), "HTTP/1.1 200");
  RawClient kept(test.port());
  kept.Send(PostOf("/wait", 1000));
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 2; }));
  EXPECT_EQ(status(), "HTTP/1.1 503");
  kept.Close();  // its handler is cancelled
  EXPECT_TRUE(Eventually([&] { return status() == "HTTP/1.1 200"; }));
  test.Release();
  EXPECT_TRUE(dropped.ReadResponse().ends_with("released, 0 bytes"));
}

TEST(HttpLimitsTest, ManyConnectionsAtOnce) {
  TestServer test;
  std::vector<RawClient> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(test.port());
    clients.back().Send(kGetWait);
  }
  EXPECT_TRUE(Eventually([&] { return test.num_waiting() == 200; }));
  test.Release();
  for (RawClient& client : clients) {
    EXPECT_TRUE(client.ReadResponse().ends_with("released"));
  }
}

TEST(HttpDrainTest, RequestsUnderWayAreFinishedAndIdleConnectionsClosed) {
  TestServer test;
  RawClient idle(test.port());
  idle.Send(kGetEcho);
  idle.ReadResponse();
  RawClient waiting(test.port());
  waiting.Send(std::string(kGetWait) + kGetEcho);
  RawClient streaming(test.port());
  streaming.Send("GET /stream-wait HTTP/1.1\r\nHost: h\r\n\r\n");
  RawClient sending(test.port());
  sending.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\na");
  sending.ReadUntil("\r\n\r\n");  // so it has begun
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 2; }));

  test.Do([&] { test.server().StopAccepting(); });
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_ANY_THROW(RawClient(test.port()));
  EXPECT_FALSE(test.drained());
  sending.Send("bc");
  const std::string late = sending.ReadAll();
  EXPECT_TRUE(late.ends_with("POST /echo? abc")) << late;
  EXPECT_NE(late.find("Connection: close\r\n"), std::string::npos) << late;
  EXPECT_FALSE(test.drained());
  test.Release();
  const std::string answer = waiting.ReadAll();
  EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("released")) << answer;  // and the request behind it is not taken
  EXPECT_TRUE(streaming.ReadAll().ends_with("\r\n0\r\n\r\n"));
  waiting.Close();
  streaming.Close();
  sending.Close();
  EXPECT_TRUE(Eventually([&] { return test.drained(); }));
  EXPECT_EQ(test.num_cancelled(), 0);
}

TEST(HttpDrainTest, ADrainWithNothingToDoIsDoneAtOnce) {
  TestServer test;
  EXPECT_FALSE(test.drained());
  test.Do([&] { test.server().StopAccepting(); });
  EXPECT_TRUE(Eventually([&] { return test.drained(); }));
}

TEST(HttpDrainTest, CloseAllCancelsWhatRuns) {
  TestServer test;
  RawClient waiting(test.port());
  waiting.Send(kGetWait);
  RawClient streaming(test.port());
  streaming.Send("GET /stream-wait HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 2; }));
  test.Do([&] { test.server().CloseAll(); });
  EXPECT_EQ(waiting.ReadAll(), "");
  EXPECT_FALSE(streaming.ReadAll().ends_with("\r\n0\r\n\r\n"));
  EXPECT_TRUE(Eventually([&] { return test.drained(); }));
  EXPECT_EQ(test.num_cancelled(), 2);
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kServerClosed);
}

TEST(HttpDrainTest, AServerMayBeDestroyedWithRequestsUnderWay) {
  auto io = std::make_unique<asio::io_context>();
  bool called = false;
  auto server = std::make_unique<HttpServer>(
      *io, HttpServerOptions{}, [&](const HttpRequest&, HttpResponder&) -> asio::awaitable<void> {
        called = true;
        asio::steady_timer timer(*io, std::chrono::hours(1));
        co_await timer.async_wait(asio::use_awaitable);
      });
  RawClient client(server->port());
  client.Send(kGetWait);
  RawClient idle(server->port());
  while (!called) io->run_one();
  server.reset();
  io.reset();  // without having run: the coroutines are destroyed where they stand
  EXPECT_EQ(client.ReadAll(), "");
}

TEST(HttpListenTest, AnAddressThatCannotBeHadIsNamed) {
  TestServer test;
  asio::io_context io;
  const auto listen = [&](HttpServerOptions options) {
    return ErrorMessage(ErrorCode::kInvalidArgument, [&] { HttpServer(io, options, {}); });
  };
  EXPECT_EQ(listen({.port = test.port()}), "cannot listen on address 127.0.0.1, port " +
                                               std::to_string(test.port()) +
                                               ": Address already in use; take another port, "
                                               "or 0 for a free one");
  EXPECT_EQ(listen({.address = "nowhere"}), "address: expected an IP address, got 'nowhere'");
  EXPECT_EQ(listen({.port = 65536}), "port: expected 0 to 65535, got 65536");
  EXPECT_EQ(listen({.max_connections = 0}), "max_connections: expected at least 1, got 0");
  EXPECT_EQ(listen({.max_body_bytes = 11, .max_total_body_bytes = 10}),
            "max_total_body_bytes: expected max_body_bytes, 11, or more, got 10");
  EXPECT_EQ(test.server().endpoint(), "http://127.0.0.1:" + std::to_string(test.port()));
}

TEST(HttpListenTest, AUnixSocketIsMadeUsedAndRemoved) {
  const TestFolder folder;
  const std::string path = folder.Path("socket");
  {
    TestServer test({.unix_socket = path});
    EXPECT_EQ(test.server().endpoint(), "unix:" + path);
    RawClient client(path);
    client.Send(kGetEcho);
    EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
    EXPECT_EQ(test.record(0).remote, "unix");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(HttpListenTest, OnlyASocketThatNobodyListensOnIsReplaced) {
  const TestFolder folder;
  const std::string path = folder.Path("socket");
  asio::io_context io;
  const auto listen = [&](const std::string& file) {
    return ErrorMessage([&] { HttpServer(io, {.unix_socket = file}, {}); });
  };
  TestServer test({.unix_socket = path});
  EXPECT_EQ(listen(path), "unix socket " + path + ": another process listens there");
  RawClient client(path);  // the first is unharmed
  client.Send(kGetEcho);
  EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));

  const std::string stale = folder.Path("stale");
  {
    asio::local::stream_protocol::acceptor dead(io, asio::local::stream_protocol::endpoint(stale));
  }
  ASSERT_TRUE(std::filesystem::is_socket(stale));
  EXPECT_EQ(listen(stale), "no error");

  const std::string file = folder.Write("file", "precious");
  EXPECT_EQ(listen(file), "unix socket " + file + ": a file that is not a socket is in the way");
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
  EXPECT_EQ(
      listen(folder.Path("no/socket")),
      "cannot listen on unix socket " + folder.Path("no/socket") + ": No such file or directory");
  const std::string too_long = "/" + std::string(200, 'x');
  EXPECT_EQ(listen(too_long),
            "unix socket " + too_long + ": expected a path of at most 107 bytes, got 201");
}

}  // namespace
}  // namespace quire
