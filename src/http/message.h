// HTTP messages as plain data: no sockets, no library types.
#ifndef QUIRE_HTTP_MESSAGE_H_
#define QUIRE_HTTP_MESSAGE_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// Without regard to the case of ASCII letters, as HTTP compares names.
bool EqualIgnoringCase(std::string_view a, std::string_view b);

// In the order of the message; names are compared by EqualIgnoringCase.
class HttpHeaders {
 public:
  using Field = std::pair<std::string, std::string>;  // name, value

  HttpHeaders() = default;
  HttpHeaders(std::initializer_list<Field> fields) : fields_(fields) {}

  void Add(std::string name, std::string value);
  // The first of this name.
  std::optional<std::string_view> Find(std::string_view name) const;

  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

struct HttpRequest {
  std::string method{};  // as sent: "GET"; may be one nobody knows
  std::string path{};    // as sent, percent signs and all: "/v1/models"; "*" for OPTIONS *
  std::string query{};   // without the question mark
  HttpHeaders headers{};
  std::string body{};    // whole, with any chunked coding removed
  std::string remote{};  // "127.0.0.1:51234", "[::1]:51234" or "unix"
};

struct HttpResponse {
  int status = 200;
  std::string content_type = {};  // "": no such header
  std::string body = {};
  // Not Content-Type, Content-Length, Transfer-Encoding, Connection: those are the server's.
  HttpHeaders headers = {};
};

// "Not Found" for 404; "Unknown" for a status that has no phrase.
std::string_view HttpReason(int status);

// An answer to a request of which only the header has come.
struct HttpEarlyAnswer {
  HttpResponse response{};
  std::string note{};   // as HttpResponder::set_note
  std::string error{};  // why, for the log
};

}  // namespace quire

#endif  // QUIRE_HTTP_MESSAGE_H_
