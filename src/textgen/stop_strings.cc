#include "textgen/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    Require(!stop.empty(), "stop: expected a text, got an empty one");
  }
}

StopStrings::Places StopStrings::Find() const {
  Places places;
  const std::string_view held = held_;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string_view stop = stops_[i];
    const size_t whole = held.find(stop);
    if (whole != std::string::npos &&
        (whole < places.whole ||
         (whole == places.whole && stop.size() < stops_[places.stop].size()))) {
      places.whole = whole;
      places.stop = i;
    }
    const size_t tail = held.size() - std::min(held.size(), stop.size() - 1);
    for (size_t begin = tail; begin < held.size(); ++begin) {
      if (stop.starts_with(held.substr(begin))) {
        places.begun = std::min(places.begun, begin);
        break;
      }
    }
  }
  return places;
}

std::string StopStrings::Put(std::string_view piece) {
  if (found_) return {};
  if (stops_.empty()) return std::string(piece);
  held_ += piece;
  const Places places = Find();
  // One that has begun further ahead may still become the first.
  const bool clear = places.whole != std::string::npos && places.whole <= places.begun;
  const size_t end = std::min({places.whole, places.begun, held_.size()});
  std::string text = held_.substr(0, end);
  held_.erase(0, end);
  if (clear) {
    found_ = stops_[places.stop];
    held_.clear();
  }
  return text;
}

std::string StopStrings::Flush() {
  // With nothing more to come, what has begun will not become whole.
  if (const Places places = Find(); !found_ && places.whole != std::string::npos) {
    found_ = stops_[places.stop];
    held_.resize(places.whole);
  }
  return std::exchange(held_, {});
}

}  // namespace quire
