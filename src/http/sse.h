// Server-sent events (the WHATWG HTML standard, "event stream"): writing and reading.
#ifndef QUIRE_HTTP_SSE_H_
#define QUIRE_HTTP_SSE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace quire {

inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
// A comment: keeps a connection alive, and readers skip it.
inline constexpr std::string_view kSsePing = ": ping\n\n";

// "data: ...\n\n"; one "data: " line for each line of `data`.
std::string SseData(std::string_view data);

struct SseEvent {
  std::string type = "message";  // the value of "event:"
  std::string data{};            // lines joined by '\n'
};

// The same, behind "event: ..." where the type is another than every event has.
std::string SseText(const SseEvent& event);

// Takes a stream in pieces, cut anywhere. Lines may end in LF, CR or CRLF.
class SseParser {
 public:
  // An event of more bytes than this is refused, so that memory is bounded.
  explicit SseParser(size_t max_event_bytes = size_t{64} << 20);

  // Calls on_event for every event that `bytes` completes. Throws Error(kCapacityExceeded) if an
  // event is longer than allowed.
  void Feed(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event);

 private:
  void EndLine(const std::function<void(const SseEvent&)>& on_event);

  size_t max_event_bytes_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;   // a "data" line came; without one an event is not dispatched
  bool after_cr_ = false;   // an LF that follows belongs to the line end already seen
  bool first_line_ = true;  // may begin with a byte order mark
};

}  // namespace quire

#endif  // QUIRE_HTTP_SSE_H_
