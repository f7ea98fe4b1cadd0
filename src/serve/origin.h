// Which hosts and origins may ask a server that only this machine reaches.
//
// A page of any site can make a browser on this machine send requests to 127.0.0.1. It cannot choose two
// headers: Host, which is the name that the page asked for (its own, if that name was made to resolve to
// this machine), and Origin, the site that it came from.
#ifndef QUIRE_SERVE_ORIGIN_H_
#define QUIRE_SERVE_ORIGIN_H_

#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace quire {

// "localhost" or an address that only this machine has: 127.0.0.0/8, ::1.
bool IsLoopback(std::string_view address);

struct OriginRules {
  bool is_checked = false;                      // false: anyone may ask
  std::vector<std::string> allowed_hosts = {};  // besides addresses and localhost; "*": any
  std::string cors_origin = {};                 // besides the server's own; "*": any
};

// Throws ApiError(403) unless Host is an address, localhost or one that is allowed, and Origin, where
// there is one, that of the server itself or the one that is allowed. Ports of Host are not looked at.
void CheckOrigin(const HttpRequest& request, const OriginRules& rules);

}  // namespace quire

#endif  // QUIRE_SERVE_ORIGIN_H_
