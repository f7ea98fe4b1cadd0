// For what looks for tags in a text that comes piece by piece.
#ifndef QUIRE_TEXT_POSSIBLE_TAG_H_
#define QUIRE_TEXT_POSSIBLE_TAG_H_

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace quire {

// How many of the last bytes of `text` could be the beginning of `tag`, which is not empty.
inline size_t PossibleTagBytes(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace quire

#endif  // QUIRE_TEXT_POSSIBLE_TAG_H_
