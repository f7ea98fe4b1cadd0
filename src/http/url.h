// Where a client connects.
#ifndef QUIRE_HTTP_URL_H_
#define QUIRE_HTTP_URL_H_

#include <string>
#include <string_view>

namespace quire::internal {

struct HttpUrl {
  enum class Scheme { kHttp, kHttps, kUnix };

  Scheme scheme = Scheme::kHttp;
  std::string host;         // without brackets; "localhost" for a unix socket
  std::string port;         // "" for a unix socket
  std::string authority;    // for the Host header, as given
  std::string prefix;       // "" or "/v1": no slash at its end
  std::string socket_file;  // of a unix socket
};

// Throws Error(kInvalidArgument) with the URL and what is expected.
HttpUrl ParseHttpUrl(std::string_view text);

}  // namespace quire::internal

#endif  // QUIRE_HTTP_URL_H_
