#include "http/url.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace quire::internal {
namespace {

bool IsPort(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

}  // namespace

HttpUrl ParseHttpUrl(std::string_view text) {
  const std::string_view whole = text;
  const auto take = [&text](std::string_view begin) {
    const bool has = text.starts_with(begin);
    if (has) text.remove_prefix(begin.size());
    return has;
  };
  HttpUrl url;
  if (take("unix:")) {
    Require(!text.empty(), "url '{}': expected unix:/path/of/socket", whole);
    url.scheme = HttpUrl::Scheme::kUnix;
    url.host = url.authority = "localhost";
    url.socket_file = text;
    return url;
  }
  const bool is_http = take("http://");
  Require(is_http || take("https://"),
          "url '{}': expected http://host[:port], https://host[:port] or unix:/path/of/socket",
          whole);
  url.scheme = is_http ? HttpUrl::Scheme::kHttp : HttpUrl::Scheme::kHttps;
  const size_t slash = std::min(text.find('/'), text.size());
  url.prefix = text.substr(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  const std::string_view authority = text.substr(0, slash);
  url.authority = authority;
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  const size_t colon =
      std::min(authority.find(':', std::min(bracket, authority.size())), authority.size());
  std::string_view host = authority.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  url.host = host;
  url.port = colon < authority.size() ? authority.substr(colon + 1) : is_http ? "80" : "443";
  constexpr std::string_view kNotInHost(" @?#[\r\n\t\0", 9);
  Require(!host.empty() && host.find_first_of(kNotInHost) == std::string_view::npos &&
              url.prefix.find_first_of("?# \r\n") == std::string::npos,
          "url '{}': expected scheme://host[:port][/prefix]", whole);
  Require(IsPort(url.port), "url '{}': expected a port from 1 to 65535, got '{}'", whole, url.port);
  return url;
}

}  // namespace quire::internal
