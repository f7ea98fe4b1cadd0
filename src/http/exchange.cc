#include <algorithm>
#include <utility>

#include "base/error.h"
#include "http/connection.h"

namespace quire::internal {
namespace {

bool IsToken(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool IsOneLine(std::string_view value) {
  return value.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

// A line end in a value would let whoever chose it write headers and answers of their own.
void AppendField(std::string& out, std::string_view name, std::string_view value) {
  Require(IsToken(name), "response header: expected a name, got '{}'", name);
  Require(IsOneLine(value), "response header {}: expected one line", name);
  out += name;
  out += ": ";
  out += value;
  out += "\r\n";
}

void CheckHeaders(const HttpHeaders& headers) {
  for (const char* name : {"Content-Type", "Content-Length", "Transfer-Encoding", "Connection"}) {
    Require(!headers.Find(name), "response header {}: is the server's to set", name);
  }
}

bool HasNoBody(int status) { return status == 204 || status == 304; }

}  // namespace

HttpExchange::HttpExchange(HttpConnection& connection, HttpRequest request, bool is_http_1_0,
                           bool keep_alive, BodyShare body_share)
    : connection_(connection),
      request_(std::move(request)),
      body_share_(std::move(body_share)),
      is_http_1_0_(is_http_1_0),
      is_head_(request_.method == "HEAD"),
      keep_alive_(keep_alive) {
  record.remote = request_.remote;
  record.method = request_.method;
  record.path = request_.path;
  record.request_bytes = static_cast<int64_t>(request_.body.size());
}

std::string HttpExchange::Head(int status, std::string_view content_type,
                               const HttpHeaders& headers, std::string_view framing) {
  QUIRE_CHECK(!started(), "{} {}: a second answer", request_.method, request_.path);
  Require(status >= 200 && status <= 599, "response status: expected 200 to 599, got {}", status);
  CheckHeaders(headers);
  if (connection_.draining()) keep_alive_ = false;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, HttpReason(status));
  if (!content_type.empty()) AppendField(head, "Content-Type", content_type);
  for (const auto& [name, value] : headers.fields()) AppendField(head, name, value);
  head += framing;
  if (!keep_alive_) {
    head += "Connection: close\r\n";
  } else if (is_http_1_0_) {
    head += "Connection: keep-alive\r\n";  // not the default there
  }
  head += "\r\n";
  return head;
}

asio::awaitable<void> HttpExchange::Send(HttpResponse response) {
  const std::string framing =
      HasNoBody(response.status) ? "" : fmt::format("Content-Length: {}\r\n", response.body.size());
  std::string bytes = Head(response.status, response.content_type, response.headers, framing);
  const bool with_body = !is_head_ && !HasNoBody(response.status);
  if (with_body) bytes += response.body;
  progress_ = Progress::kStreaming;
  record.status = response.status;
  co_await connection_.Write(bytes);
  if (with_body) record.response_bytes = static_cast<int64_t>(response.body.size());
  progress_ = Progress::kComplete;
}

asio::awaitable<void> HttpExchange::Start(int status, std::string content_type,
                                          HttpHeaders headers) {
  chunked_ = !is_http_1_0_;
  if (is_http_1_0_) keep_alive_ = false;  // the end of the connection is the end of the body
  const std::string head =
      Head(status, content_type, headers, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  progress_ = Progress::kStreaming;
  record.status = status;
  co_await connection_.Write(head);
}

asio::awaitable<void> HttpExchange::Write(std::string_view piece) {
  QUIRE_CHECK(progress_ == Progress::kStreaming, "{} {}: Write outside of Start and Finish",
              request_.method, request_.path);
  if (piece.empty() || is_head_) co_return;  // an empty chunk would be the last
  if (chunked_) {
    const std::string chunk = fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
    co_await connection_.Write(chunk);
  } else {
    co_await connection_.Write(piece);
  }
  record.response_bytes += static_cast<int64_t>(piece.size());
}

asio::awaitable<void> HttpExchange::Finish() {
  QUIRE_CHECK(progress_ == Progress::kStreaming, "{} {}: Finish outside of an answer",
              request_.method, request_.path);
  if (chunked_ && !is_head_) co_await connection_.Write("0\r\n\r\n");
  progress_ = Progress::kComplete;
}

void HttpExchange::DropBody() {
  std::string().swap(request_.body);
  body_share_.Release();
}

}  // namespace quire::internal
