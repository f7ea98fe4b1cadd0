// Bytes to HttpRequest, without sockets: the rules on what the server takes and what it refuses.
#ifndef QUIRE_HTTP_REQUEST_PARSER_H_
#define QUIRE_HTTP_REQUEST_PARSER_H_

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "http/message.h"

namespace quire::internal {

struct HttpRefusal {
  int status = 0;
  std::string message;
  std::optional<HttpEarlyAnswer> answer = {};  // in place of what is made from these
};

// A body that takes the memory of what has come of it. Beast's string_body takes that of Content-Length at
// the first byte.
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return body_.size() - before;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// One request.
class HttpRequestParser {
 public:
  // Asked, before bytes of a body are taken, whether there is room for it with these; and once, with its
  // header, for as many as it says it will have, which 0 takes back: only what has come is held. False
  // is a refusal with 503.
  using AdmitBody = std::function<bool(size_t bytes)>;

  HttpRequestParser(size_t max_header_bytes, size_t max_body_bytes, AdmitBody admit_body = {});

  // Takes what it can from the front of `bytes`, and says how much. What is not taken must be given
  // again with more behind it. Not after done() or a refusal.
  size_t Put(std::string_view bytes);

  bool begun() const { return begun_; }  // any byte but line ends that precede a request
  bool header_done() const { return parser_.is_header_done(); }
  bool done() const { return parser_.is_done(); }
  const std::optional<HttpRefusal>& refusal() const { return refusal_; }

  // After the header.
  bool expects_continue() const { return expects_continue_; }
  bool is_http_1_0() const { return parser_.get().version() < 11; }
  bool keep_alive() const { return parser_.keep_alive(); }

  // Method, path, query and headers after the header; the body when done. Once.
  HttpRequest Take();
  // What is known of the method and the path, for the log of a refusal.
  const HttpRequest& partial() const { return request_; }

 private:
  void Refuse(int status, std::string message) { refusal_ = {status, std::move(message)}; }
  void RefuseError(const boost::beast::error_code& error);
  void CheckLength();
  void CheckRoom(size_t next_bytes);
  void RefuseForRoom(size_t needed, std::string_view more);
  void TakeHeader();
  void CheckHeader();
  void CheckTransferEncoding();

  size_t max_header_bytes_;
  size_t max_body_bytes_;
  AdmitBody admit_body_;
  boost::beast::http::request_parser<GrowingBody> parser_;
  size_t header_bytes_ = 0;
  bool begun_ = false;
  bool expects_continue_ = false;
  HttpRequest request_;
  std::optional<HttpRefusal> refusal_;
};

}  // namespace quire::internal

#endif  // QUIRE_HTTP_REQUEST_PARSER_H_
