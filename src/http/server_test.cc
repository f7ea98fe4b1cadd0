#include "http/server.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "http/test_server.h"

namespace quire {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
using testing::RawClient;
using testing::TestServer;

std::string Get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + more + "\r\n";
}

std::string Post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string Body(const std::string& response) {
  const size_t at = response.find("\r\n\r\n");
  return at == std::string::npos ? "no body: " + response : response.substr(at + 4);
}

int Status(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::stoi(response.substr(9, 3)) : 0;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* kChunks = "3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n";

TEST(HttpServerTest, AnswersOneRequestAfterAnotherOnOneConnection) {
  TestServer test;
  RawClient client(test.port());
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/echo?a=b", "body"));
    const std::string response = client.ReadResponse();
    EXPECT_EQ(
        response,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Kind: echo\r\nContent-Length: 19\r\n"
        "\r\nPOST /echo?a=b body");
  }
  test.Do([&] { EXPECT_EQ(test.server().num_connections(), 1); });
}

TEST(HttpServerTest, ConnectionCloseIsHonoured) {
  TestServer test;
  RawClient client(test.port());
  client.Send(Get("/echo", "Connection: close\r\n"));
  const std::string response = client.ReadAll();
  EXPECT_TRUE(Contains(response, "Connection: close\r\n")) << response;
  EXPECT_EQ(Body(response), "GET /echo? ");
}

TEST(HttpServerTest, Http10ClosesUnlessAskedNotTo) {
  TestServer test;
  RawClient closing(test.port());
  closing.Send("GET /echo HTTP/1.0\r\n\r\n");
  EXPECT_EQ(Body(closing.ReadAll()), "GET /echo? ");

  RawClient keeping(test.port());
  for (int i = 0; i < 2; ++i) {
    keeping.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_TRUE(Contains(keeping.ReadResponse(), "Connection: keep-alive\r\n"));
  }
}

TEST(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  TestServer test;
  RawClient client(test.port());
  for (int i = 0; i < 2; ++i) {
    client.Send(Get("/stream"));
    EXPECT_EQ(client.ReadUntil("\r\n\r\n"),
              "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
              "Transfer-Encoding: chunked\r\n\r\n");
    EXPECT_EQ(client.ReadUntil("\r\n0\r\n\r\n"), kChunks);
  }
  EXPECT_EQ(test.record(1).response_bytes, 11);
}

TEST(HttpServerTest, APieceIsSentBeforeTheNextIsMade) {
  TestServer test;
  RawClient client(test.port());
  client.Send(Get("/stream-wait"));
  EXPECT_EQ(Body(client.ReadUntil("one\r\n")), "3\r\none\r\n");
  test.Release();
  client.ReadUntil("0\r\n\r\n");
}

TEST(HttpServerTest, StreamsToHttp10UntilTheConnectionEnds) {
  TestServer test;
  RawClient client(test.port());
  client.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string response = client.ReadAll();
  EXPECT_FALSE(Contains(response, "chunked")) << response;
  EXPECT_TRUE(Contains(response, "Connection: close\r\n")) << response;
  EXPECT_EQ(Body(response), "onetwothree");
}

TEST(HttpServerTest, HeadHasTheHeadersAndNoBody) {
  TestServer test;
  RawClient client(test.port());
  client.Send(
      "HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\nHEAD /echo HTTP/1.1\r\nHost: h\r\n"
      "Connection: close\r\n\r\n");
  const std::string streamed = client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(Contains(streamed, "Transfer-Encoding: chunked\r\n"));
  const std::string sent = client.ReadAll();
  EXPECT_TRUE(sent.starts_with("HTTP/1.1 200 OK\r\n")) << sent;
  EXPECT_TRUE(Contains(sent, "Content-Length: 12\r\n")) << sent;
  EXPECT_EQ(Body(sent), "");
}

TEST(HttpServerTest, BodiesMayBeChunkedOrLarge) {
  TestServer test;
  RawClient client(test.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
  client.Send("1\r\n!\r\n0\r\n\r\n");
  EXPECT_EQ(Body(client.ReadResponse()), "POST /echo? hello!");
  const std::string large(3'000'000, 'x');
  client.Send(Post("/echo", large));
  EXPECT_EQ(Body(client.ReadResponse()), "POST /echo? " + large);
}

TEST(HttpServerTest, AClientThatExpectsAContinueGetsOne) {
  TestServer test({.max_body_bytes = 10});
  RawClient client(test.port());
  const std::string begin = "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n";
  client.Send(begin + "Content-Length: 5\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hello");
  EXPECT_EQ(Body(client.ReadResponse()), "POST /echo? hello");
  // A body that would be refused is refused before it is sent.
  client.Send(begin + "Content-Length: 11\r\n\r\n");
  EXPECT_EQ(Status(client.ReadAll()), 413);
}

TEST(HttpServerTest, ABodyThatDoesNotWaitForTheContinueIsTaken) {
  TestServer test;
  const std::string body(20'000, 'x');  // more than one read
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 20000\r\n\r\n" +
      body;
  RawClient at_once(test.port());
  for (int i = 0; i < 20; ++i) {
    at_once.Send(request);
    EXPECT_EQ(at_once.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    ASSERT_TRUE(Body(at_once.ReadResponse()) == "POST /echo? " + body) << i;
  }
  RawClient bytewise(test.port());
  for (const char byte : request) bytewise.Send(std::string_view(&byte, 1));
  EXPECT_EQ(bytewise.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_TRUE(Body(bytewise.ReadResponse()) == "POST /echo? " + body);
}

TEST(HttpServerTest, ABodyThatNeverComesAfterTheContinueHoldsUpNobody) {
  TestServer test({.body_timeout = milliseconds(50)});
  const std::string begin =
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
  RawClient silent(test.port());
  silent.Send(begin);
  EXPECT_EQ(silent.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(Status(silent.ReadAll()), 408);

  TestServer patient;
  RawClient gone(patient.port());
  gone.Send(begin);
  gone.HalfClose();
  EXPECT_EQ(gone.ReadAll(), "HTTP/1.1 100 Continue\r\n\r\n");
  RawClient closed(patient.port());
  closed.Send(begin);
  closed.ReadUntil("\r\n\r\n");
  patient.Do([&] { patient.server().CloseAll(); });
  EXPECT_EQ(closed.ReadAll(), "");
}

TEST(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  TestServer test;
  RawClient client(test.port());
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += Post("/echo", std::to_string(i));
  client.Send(requests);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Body(client.ReadResponse()), "POST /echo? " + std::to_string(i));
  }
}

TEST(HttpServerTest, RequestsThatComeWhileAHandlerWaitsAreKept) {
  TestServer test({.max_header_bytes = 1000});
  RawClient client(test.port());
  client.Send(Get("/wait"));
  ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 1; }));
  client.Send(Get("/echo?1"));
  client.Send(Post("/echo?2", std::string(100'000, 'x')));  // more than is read ahead
  EXPECT_EQ(test.num_cancelled(), 0);
  test.Release();
  EXPECT_EQ(Body(client.ReadResponse()), "released");
  EXPECT_EQ(Body(client.ReadResponse()), "GET /echo?1 ");
  EXPECT_EQ(Body(client.ReadResponse()).size(), 100'000 + std::string("POST /echo?2 ").size());
  EXPECT_EQ(test.num_cancelled(), 0);
}

TEST(HttpServerTest, ADisconnectCancelsTheHandler) {
  TestServer test;
  const std::vector<std::function<void(RawClient&)>> ways = {
      [](RawClient& client) { client.Close(); },
      [](RawClient& client) { client.HalfClose(); },
      [](RawClient& client) { client.Reset(); },
  };
  for (const char* path : {"/wait", "/stream-wait"}) {
    for (const auto& leave : ways) {
      const size_t before = test.records().size();
      RawClient client(test.port());
      client.Send(Get(path) + Get("/echo"));  // bytes behind it do not hide the end
      ASSERT_TRUE(Eventually([&] { return test.num_waiting() == 1; }));
      leave(client);
      const AccessRecord record = test.record(before);
      EXPECT_EQ(record.outcome, HttpOutcome::kClientGone);
      EXPECT_EQ(record.status, path == std::string("/wait") ? 0 : 200);
    }
  }
  EXPECT_EQ(test.num_cancelled(), 6);
  EXPECT_TRUE(Eventually([&] {
    int open = -1;
    test.Do([&] { open = test.server().num_connections() + test.server().num_requests(); });
    return open == 0;
  }));
}

TEST(HttpServerTest, AHandlerThatThrowsIsA500) {
  TestServer test;
  RawClient client(test.port());
  for (const char* path : {"/throw", "/silent", "/inject", "/own-length"}) {
    client.Send(Get(path));
    const std::string response = client.ReadResponse();
    EXPECT_EQ(Status(response), 500) << path;
    EXPECT_EQ(Body(response), "internal error\n") << path;
  }
  client.Send(Get("/echo"));  // the connection is still good
  EXPECT_EQ(Status(client.ReadResponse()), 200);
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kHandlerFailed);
  EXPECT_EQ(test.record(0).error, "secret");
  EXPECT_EQ(test.record(1).error, "the handler did not answer in full");
  EXPECT_EQ(test.record(2).error, "response header X-Id: expected one line");
  EXPECT_EQ(test.record(3).error, "response header Content-Length: is the server's to set");
}

TEST(HttpServerTest, AnAnswerThatFailsHalfWayIsNotEndedProperly) {
  TestServer test;
  for (const char* path : {"/throw-late", "/unfinished"}) {
    RawClient client(test.port());
    client.Send(Get(path));
    EXPECT_EQ(Body(client.ReadAll()), "4\r\npart\r\n") << path;
  }
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kHandlerFailed);
  EXPECT_EQ(test.record(0).status, 200);
}

TEST(HttpServerTest, ASecondAnswerIsAnError) {
  TestServer test;
  RawClient client(test.port());
  client.Send(Get("/twice"));
  EXPECT_EQ(Status(client.ReadAll()), 200);
  EXPECT_EQ(test.record(0).outcome, HttpOutcome::kHandlerFailed);
  EXPECT_TRUE(Contains(test.record(0).error, "a second answer")) << test.record(0).error;
}

TEST(HttpServerTest, RecordsSayWhatHappened) {
  TestServer test;
  RawClient client(test.port());
  client.Send(Post("/echo?q", "12345"));
  client.ReadResponse();
  const AccessRecord record = test.record(0);
  EXPECT_TRUE(record.remote.starts_with("127.0.0.1:")) << record.remote;
  EXPECT_EQ(record.method, "POST");
  EXPECT_EQ(record.path, "/echo");
  EXPECT_EQ(record.status, 200);
  EXPECT_EQ(HttpOutcomeName(record.outcome), "answered");
  EXPECT_EQ(record.request_bytes, 5);
  EXPECT_EQ(record.response_bytes, 18);
  EXPECT_EQ(record.note, "note");
  EXPECT_EQ(record.error, "");
}

}  // namespace
}  // namespace quire
