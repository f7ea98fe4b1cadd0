// The parser of requests never crashes, never takes more than it is given, keeps to its limits, and
// reads the same whether bytes come at once or one by one.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "http/request_parser.h"

namespace {

using quire::HttpRequest;
using quire::internal::HttpRequestParser;

constexpr size_t kMaxHeaderBytes = 512;
constexpr size_t kMaxBodyBytes = 256;

void Check(bool condition) {
  if (!condition) std::abort();
}

struct Result {
  int refused = 0;
  std::optional<HttpRequest> request;
};

// The first request of `bytes`, which come in pieces of `step`.
Result Parse(std::string_view bytes, size_t step) {
  HttpRequestParser parser(kMaxHeaderBytes, kMaxBodyBytes);
  std::string input;
  while (!parser.done() && !parser.refusal() && !bytes.empty()) {
    input += bytes.substr(0, step);
    bytes.remove_prefix(std::min(step, bytes.size()));
    const size_t taken = parser.Put(input);
    Check(taken <= input.size());
    input.erase(0, taken);
  }
  Result result;
  if (parser.refusal()) {
    result.refused = parser.refusal()->status;
    Check(result.refused >= 400 && result.refused <= 505);
  } else if (parser.done()) {
    result.request = parser.Take();
    Check(result.request->body.size() <= kMaxBodyBytes);
    Check(!result.request->method.empty() && !result.request->path.empty());
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Result whole = Parse(bytes, bytes.size() + 1);
  const Result bytewise = Parse(bytes, 1);
  // A refusal may come earlier with all bytes at hand than with one at a time, and for another reason;
  // but what one way refuses is no request the other way.
  Check(whole.request.has_value() == bytewise.request.has_value());
  if (whole.request) {
    Check(whole.request->path == bytewise.request->path);
    Check(whole.request->body == bytewise.request->body);
    Check(whole.request->headers.fields() == bytewise.request->headers.fields());
  }
  return 0;
}
