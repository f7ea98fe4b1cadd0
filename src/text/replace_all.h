// Replacement of plain text.
#ifndef QUIRE_TEXT_REPLACE_ALL_H_
#define QUIRE_TEXT_REPLACE_ALL_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// `text` with `by` for every `what`, from left to right. `what` is not empty.
inline std::string ReplaceAll(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  while (true) {
    const size_t at = text.find(what);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += by;
    text.remove_prefix(at + what.size());
  }
}

}  // namespace quire

#endif  // QUIRE_TEXT_REPLACE_ALL_H_
