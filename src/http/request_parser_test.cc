#include "http/request_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::internal {
namespace {

constexpr size_t kMaxHeaderBytes = 200;
constexpr size_t kMaxBodyBytes = 10;

// "status: message" of a refusal, "incomplete", or "method path?query [body]".
std::string Parse(std::string_view bytes, size_t step = 1000) {
  HttpRequestParser parser(kMaxHeaderBytes, kMaxBodyBytes);
  std::string input;
  while (!parser.done() && !parser.refusal() && !bytes.empty()) {
    input += bytes.substr(0, step);
    bytes.remove_prefix(std::min(step, bytes.size()));
    input.erase(0, parser.Put(input));
  }
  if (parser.refusal()) {
    return std::to_string(parser.refusal()->status) + ": " + parser.refusal()->message;
  }
  if (!parser.done()) return "incomplete";
  const HttpRequest request = parser.Take();
  return request.method + " " + request.path + "?" + request.query + " [" + request.body + "]";
}

TEST(HttpRequestParserTest, TargetsAreSplit) {
  EXPECT_EQ(Parse("GET /a/b?c=d?e HTTP/1.1\r\nHost: h\r\n\r\n"), "GET /a/b?c=d?e []");
  EXPECT_EQ(Parse("GET http://h:1/a?b HTTP/1.1\r\nHost: h\r\n\r\n"), "GET /a?b []");
  EXPECT_EQ(Parse("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n"), "GET /? []");
  EXPECT_EQ(Parse("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"), "OPTIONS *? []");
  EXPECT_EQ(Parse("BREW /%20 HTTP/1.0\r\n\r\n"), "BREW /%20? []");
  EXPECT_EQ(Parse("GET a HTTP/1.1\r\nHost: h\r\n\r\n"),
            "400: request target: expected a path that begins with '/'");
}

TEST(HttpRequestParserTest, BodiesOfBothKindsHoweverTheyAreCut) {
  const std::string sized =
      "\r\n\r\nPOST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n0123456789";
  const std::string chunked =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4;x=\"y\"\r\n0123\r\n6\r\n456789\r\n0\r\nTrailer: v\r\n\r\n";
  for (size_t step = 1; step < 120; ++step) {
    EXPECT_EQ(Parse(sized, step), "POST /? [0123456789]") << step;
    EXPECT_EQ(Parse(chunked, step), "POST /? [0123456789]") << step;
  }
}

TEST(HttpRequestParserTest, ABodyIsAskedForBeforeItIsTaken) {
  std::vector<size_t> asked;
  const auto admit = [&](size_t bytes) {
    asked.push_back(bytes);
    return bytes <= 8;
  };
  HttpRequestParser sized(kMaxHeaderBytes, kMaxBodyBytes, admit);
  sized.Put("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n");
  ASSERT_TRUE(sized.refusal().has_value());
  EXPECT_EQ(sized.refusal()->status, 503);
  EXPECT_EQ(asked, std::vector<size_t>{9});

  // Room for all of it, and then only for what has come.
  asked.clear();
  HttpRequestParser fits(kMaxHeaderBytes, kMaxBodyBytes, admit);
  fits.Put("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\n");
  fits.Put("abc");
  fits.Put("defghGET / HTTP/1.1");
  EXPECT_TRUE(fits.done());
  EXPECT_EQ(asked, (std::vector<size_t>{8, 0, 3, 8}));

  asked.clear();
  HttpRequestParser chunked(kMaxHeaderBytes, kMaxBodyBytes, admit);
  chunked.Put("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Put("3\r\nabc");
  EXPECT_FALSE(chunked.refusal().has_value());
  chunked.Put("\r\n6\r\nd");
  ASSERT_TRUE(chunked.refusal().has_value());
  EXPECT_EQ(asked.back(), 9u);  // three that it has, and six bytes of what comes

  asked.clear();
  HttpRequestParser none(kMaxHeaderBytes, kMaxBodyBytes, admit);
  none.Put("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(none.done());
  EXPECT_EQ(asked, std::vector<size_t>{});
}

TEST(HttpRequestParserTest, ATrailerIsNoHeader) {
  HttpRequestParser parser(kMaxHeaderBytes, kMaxBodyBytes);
  const std::string_view bytes =
      "POST / HTTP/1.1\r\nhOSt: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "1\r\nx\r\n0\r\nAuthorization: v\r\n\r\nGET";
  EXPECT_EQ(parser.Put(bytes), bytes.size() - 3);
  ASSERT_TRUE(parser.done());
  const HttpRequest request = parser.Take();
  EXPECT_EQ(request.headers.Find("Host"), "h");
  EXPECT_EQ(request.headers.Find("Authorization"), std::nullopt);
}

TEST(HttpRequestParserTest, LimitsHoldToTheByte) {
  const auto with_header = [](size_t size) {
    const std::string begin = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
    return begin + std::string(size - begin.size() - 4, 'x') + "\r\n\r\n";
  };
  EXPECT_EQ(Parse(with_header(kMaxHeaderBytes)), "GET /? []");
  for (const size_t step : {size_t{1}, size_t{1000}}) {
    EXPECT_EQ(Parse(with_header(kMaxHeaderBytes + 1), step).substr(0, 4), "431:");
    EXPECT_EQ(Parse(with_header(10 * kMaxHeaderBytes), step).substr(0, 4), "431:");
    EXPECT_EQ(Parse(std::string(1000, 'G'), step).substr(0, 4), "431:");
  }
  EXPECT_EQ(Parse("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n"),
            "413: the body is longer than 10 bytes, which is the most this server takes");
  EXPECT_EQ(Parse("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "6\r\n012345\r\n5\r\n")
                .substr(0, 4),
            "413:");
}

TEST(HttpRequestParserTest, WhatIsRefused) {
  const auto status = [](std::string_view bytes) { return Parse(bytes).substr(0, 4); };
  EXPECT_EQ(status("GET /\r\n\r\n"), "400:");
  EXPECT_EQ(status("\x16\x03\x01\x02 / HTTP/1.1\r\n\r\n"), "400:");  // TLS to a plain port
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), "400:");               // no Host
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), "400:");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nbad line\r\n\r\n"), "400:");
  EXPECT_EQ(status("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), "505:");
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n"), "417:");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"), "400:");
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"), "400:");
}

// Two readers that disagree on where a request ends let one client's bytes pass for another's.
TEST(HttpRequestParserTest, AmbiguousLengthsAreRefused) {
  const std::string begin = "POST / HTTP/1.1\r\nHost: a\r\n";
  const auto status = [&](const std::string& rest) {
    return Parse(begin + rest + "\r\n\r\n").substr(0, 4);
  };
  EXPECT_EQ(status("Content-Length: 1\r\nContent-Length: 2"), "400:");
  EXPECT_EQ(status("Content-Length: 1\r\nTransfer-Encoding: chunked"), "400:");
  EXPECT_EQ(status("Transfer-Encoding: chunked\r\nContent-Length: 1"), "400:");
  EXPECT_EQ(status("Transfer-Encoding: gzip"), "501:");
  EXPECT_EQ(status("Transfer-Encoding: gzip, chunked"), "501:");
  EXPECT_EQ(status("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), "501:");
  EXPECT_EQ(Parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").substr(0, 4), "400:");
}

TEST(HttpRequestParserTest, BadChunksAreRefused) {
  const std::string begin = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body : {"x\r\n", "-1\r\n", "1\r\nab\r\n0\r\n\r\n", "fffffffffffffffff\r\n"}) {
    EXPECT_EQ(Parse(begin + body).substr(0, 1), "4") << body;
  }
}

}  // namespace
}  // namespace quire::internal
