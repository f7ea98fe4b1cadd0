#include "serve/origin.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace quire {
namespace {

int StatusOf(HttpHeaders headers, const OriginRules& rules) {
  HttpRequest request;
  request.headers = std::move(headers);
  try {
    CheckOrigin(request, rules);
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

TEST(OriginTest, OnlyThisMachinesAddressesAreLoopback) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "example.com", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(OriginTest, HostIsAnAddressOrLocalhost) {
  const OriginRules rules{.is_checked = true};
  for (const char* host : {"127.0.0.1:8080", "[::1]:8080", "[::1]", "localhost", "LOCALHOST:80",
                           "10.1.2.3:9", "192.168.0.1"}) {
    EXPECT_EQ(StatusOf({{"Host", host}}, rules), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example", "",
                           "127.0.0.1.evil.example", "[evil]", "127.0.0.1x"}) {
    EXPECT_EQ(StatusOf({{"Host", host}}, rules), 403) << host;
    EXPECT_EQ(StatusOf({{"Host", host}}, {}), 200) << host;
  }
  EXPECT_EQ(StatusOf({}, rules), 200);  // HTTP/1.0
  const OriginRules more{.is_checked = true, .allowed_hosts = {"Box.lan", "other"}};
  EXPECT_EQ(StatusOf({{"Host", "box.LAN:8080"}}, more), 200);
  EXPECT_EQ(StatusOf({{"Host", "box"}}, more), 403);
  EXPECT_EQ(StatusOf({{"Host", "any"}}, {.is_checked = true, .allowed_hosts = {"*"}}), 200);
}

TEST(OriginTest, OriginIsTheServersOwnOrTheOneThatIsAllowed) {
  const auto status = [](const char* origin, const OriginRules& rules) {
    return StatusOf({{"Host", "127.0.0.1:8080"}, {"Origin", origin}}, rules);
  };
  const OriginRules own{.is_checked = true};
  EXPECT_EQ(status("http://127.0.0.1:8080", own), 200);
  EXPECT_EQ(status("https://127.0.0.1:8080", own), 200);
  for (const char* origin : {"http://127.0.0.1:9090", "http://127.0.0.1", "https://evil.example",
                             "null", "http://localhost:8080", ""}) {
    EXPECT_EQ(status(origin, own), 403) << origin;
    EXPECT_EQ(status(origin, {}), 200) << origin;
    EXPECT_EQ(status(origin, {.is_checked = true, .cors_origin = "*"}), 200) << origin;
  }
  const OriginRules one{.is_checked = true, .cors_origin = "https://chat.example"};
  EXPECT_EQ(status("https://chat.example", one), 200);
  EXPECT_EQ(status("https://chat.example.evil", one), 403);
}

}  // namespace
}  // namespace quire
