#include "http/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

#include "base/error.h"
#include "http/beast_view.h"

namespace quire::internal {
namespace {

namespace http = boost::beast::http;

// "http://host/path" is how a proxy is asked; a server must understand it too (RFC 9112, 3.2.2).
std::string_view WithoutAuthority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return target;
  const size_t path = target.find_first_of("/?", scheme + 3);
  return path == std::string_view::npos ? "/" : target.substr(path);
}

}  // namespace

HttpRequestParser::HttpRequestParser(size_t max_header_bytes, size_t max_body_bytes,
                                     AdmitBody admit_body)
    : max_header_bytes_(max_header_bytes),
      max_body_bytes_(max_body_bytes),
      admit_body_(std::move(admit_body)) {
  parser_.header_limit(static_cast<uint32_t>(std::min<size_t>(max_header_bytes, UINT32_MAX)));
  parser_.body_limit(max_body_bytes);
  parser_.eager(false);  // the header alone, so that its trailers do not mix with it
}

size_t HttpRequestParser::Put(std::string_view bytes) {
  size_t taken = 0;
  if (!begun_) {
    // Some clients end a body with a line end too many (RFC 9112, 2.2).
    taken = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    begun_ = taken < bytes.size();
  }
  while (taken < bytes.size() && !parser_.is_done() && !refusal_) {
    const bool in_header = !parser_.is_header_done();
    if (!in_header) {
      CheckRoom(bytes.size() - taken);
      if (refusal_) break;
    }
    boost::beast::error_code error;
    const size_t n =
        parser_.put(boost::asio::buffer(bytes.data() + taken, bytes.size() - taken), error);
    taken += n;
    if (in_header && (header_bytes_ += n) > max_header_bytes_) error = http::error::header_limit;
    if (error == http::error::need_more) break;
    if (error) {
      RefuseError(error);
    } else if (in_header && parser_.is_header_done()) {
      TakeHeader();
      CheckHeader();
      if (!refusal_) CheckLength();  // before a client is told to go on
      parser_.eager(true);
    }
  }
  return taken;
}

void HttpRequestParser::RefuseError(const boost::beast::error_code& error) {
  if (error == http::error::header_limit) {
    Refuse(431, fmt::format("the request line and headers are longer than {} bytes, which is the "
                            "most this server takes",
                            max_header_bytes_));
  } else if (error == http::error::body_limit) {
    Refuse(413, fmt::format("the body is longer than {} bytes, which is the most this server takes",
                            max_body_bytes_));
  } else if (error == http::error::bad_version) {
    Refuse(505, "the HTTP version is not one this server speaks: 1.0 and 1.1");
  } else {
    Refuse(400, fmt::format("malformed HTTP request: {}", error.message()));
  }
}

void HttpRequestParser::CheckLength() {
  const auto length = parser_.content_length();
  if (!length || !admit_body_) return;
  if (!admit_body_(static_cast<size_t>(*length))) {
    return RefuseForRoom(static_cast<size_t>(*length), "");
  }
  (void)admit_body_(0);
}

void HttpRequestParser::CheckRoom(size_t next_bytes) {
  const auto remaining = parser_.content_length_remaining();
  if (remaining) next_bytes = std::min(next_bytes, static_cast<size_t>(*remaining));
  const size_t needed = parser_.get().body().size() + next_bytes;
  if (admit_body_ && !admit_body_(needed)) RefuseForRoom(needed, " or more");
}

void HttpRequestParser::RefuseForRoom(size_t needed, std::string_view more) {
  Refuse(503, fmt::format("there is no room for a body of {}{} bytes beside those of the other "
                          "requests: ask again later",
                          needed, more));
}

void HttpRequestParser::TakeHeader() {
  const auto& header = parser_.get();
  request_.method = View(header.method_string());
  const std::string_view target = WithoutAuthority(View(header.target()));
  const size_t question = std::min(target.find('?'), target.size());
  request_.path = target.substr(0, question);
  if (request_.path.empty()) request_.path = "/";
  request_.query = target.substr(std::min(question + 1, target.size()));
  for (const auto& field : header) {
    request_.headers.Add(std::string(View(field.name_string())), std::string(View(field.value())));
  }
}

void HttpRequestParser::CheckHeader() {
  const auto& header = parser_.get();
  const auto num_hosts = header.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0())) {
    return Refuse(400, fmt::format("Host header: expected one, got {}", num_hosts));
  }
  if (!request_.path.starts_with('/') && request_.path != "*") {
    return Refuse(400, "request target: expected a path that begins with '/'");
  }
  CheckTransferEncoding();
  if (refusal_) return;
  const auto expect = request_.headers.Find("Expect");
  if (!expect || is_http_1_0()) return;
  expects_continue_ = boost::beast::iequals(
      boost::beast::string_view(expect->data(), expect->size()), "100-continue");
  if (!expects_continue_) Refuse(417, fmt::format("Expect: '{}' is not known", *expect));
}

// The parser takes a coding it does not know for no body, and what follows for a request.
void HttpRequestParser::CheckTransferEncoding() {
  for (const auto& [name, value] : request_.headers.fields()) {
    if (!boost::beast::iequals(name, "Transfer-Encoding")) continue;
    if (is_http_1_0()) return Refuse(400, "Transfer-Encoding is not part of HTTP/1.0");
    if (!boost::beast::iequals(value, "chunked")) {
      return Refuse(501,
                    fmt::format("Transfer-Encoding: only 'chunked' is known, got '{}'", value));
    }
  }
}

HttpRequest HttpRequestParser::Take() {
  request_.body = std::move(parser_.get().body());
  return std::move(request_);
}

}  // namespace quire::internal
