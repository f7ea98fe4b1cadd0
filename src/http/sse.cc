#include "http/sse.h"

#include <utility>

#include "base/error.h"

namespace quire {

std::string SseData(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 16);
  for (;;) {
    // A CR ends a line for the reader too, so it may not stand inside one.
    const size_t end = data.find_first_of("\r\n");
    out += "data: ";
    out += data.substr(0, end);
    out += '\n';
    if (end == std::string_view::npos) break;
    data.remove_prefix(end + (data.substr(end, 2) == "\r\n" ? 2 : 1));
  }
  out += '\n';
  return out;
}

std::string SseText(const SseEvent& event) {
  if (event.type == SseEvent().type) return SseData(event.data);
  return "event: " + event.type + '\n' + SseData(event.data);
}

SseParser::SseParser(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

void SseParser::Feed(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event) {
  while (!bytes.empty()) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + event_.data.size() + piece.size() > max_event_bytes_) {
      throw Error(ErrorCode::kCapacityExceeded,
                  "event stream: an event of more than {} bytes, which is the most allowed",
                  max_event_bytes_);
    }
    line_ += piece;
    if (end == std::string_view::npos) return;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    EndLine(on_event);
  }
}

void SseParser::EndLine(const std::function<void(const SseEvent&)>& on_event) {
  const std::string line = std::exchange(line_, {});
  std::string_view text = line;
  if (std::exchange(first_line_, false) && text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.empty()) {
    const SseEvent event = std::exchange(event_, {});
    if (std::exchange(has_data_, false)) on_event(event);
    return;
  }
  const size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (std::exchange(has_data_, true)) event_.data += '\n';
    event_.data += value;
  } else if (field == "event") {
    event_.type = value.empty() ? "message" : std::string(value);
  }
  // Comments (an empty field), "id", "retry" and unknown fields change nothing here.
}

}  // namespace quire
