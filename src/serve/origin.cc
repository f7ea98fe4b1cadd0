#include "serve/origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>

#include "io/json.h"
#include "serve/api_error.h"

namespace quire {
namespace {

std::optional<boost::asio::ip::address> ReadAddress(std::string_view text) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(text), error);
  return error ? std::nullopt : std::optional(address);
}

// "[::1]:8080" -> "::1", "localhost:8080" -> "localhost".
std::string_view WithoutPort(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

bool IsAllowedHost(std::string_view host, const std::vector<std::string>& allowed) {
  const std::string_view name = WithoutPort(host);
  if (EqualIgnoringCase(name, "localhost") || ReadAddress(name)) return true;
  return std::ranges::any_of(allowed, [&](const std::string& other) {
    return other == "*" || EqualIgnoringCase(other, name);
  });
}

}  // namespace

bool IsLoopback(std::string_view address) {
  if (address == "localhost") return true;
  const auto parsed = ReadAddress(address);
  return parsed && parsed->is_loopback();
}

void CheckOrigin(const HttpRequest& request, const OriginRules& rules) {
  if (!rules.is_checked) return;
  // HTTP/1.0 has none, and no browser sends that.
  const std::string_view host = request.headers.Find("Host").value_or("localhost");
  if (!IsAllowedHost(host, rules.allowed_hosts)) {
    throw ErrorOfStatus(403,
                        fmt::format("Host: expected an address, localhost or an --allowed-host, "
                                    "got {}",
                                    QuoteForMessage(host)));
  }
  const auto origin = request.headers.Find("Origin");
  if (!origin || rules.cors_origin == "*") return;
  if (!rules.cors_origin.empty() && *origin == rules.cors_origin) return;
  for (const char* scheme : {"http", "https"}) {
    if (EqualIgnoringCase(*origin, fmt::format("{}://{}", scheme, host))) return;
  }
  throw ErrorOfStatus(403,
                      fmt::format("Origin: expected this server's own or the --cors-origin, got {}",
                                  QuoteForMessage(*origin)));
}

}  // namespace quire
