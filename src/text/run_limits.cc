#include "text/run_limits.h"

#include "text/utf8.h"

namespace quire {
namespace {

// White_Space, and the separators of ASCII: file, group, record, unit.
bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1c && c <= 0x1f); }

}  // namespace

std::vector<std::string_view> CutLongRuns(std::string_view text, const RunLimits& limits) {
  // No more bytes than characters allowed: nothing to cut.
  if (text.size() <= limits.max_run && text.size() <= limits.max_text) return {text};
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  size_t num_characters = 0;
  size_t run = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = ReadUtf8(text.substr(at));
    const bool is_space = IsPythonSpace(step.character);
    const bool text_is_full = num_characters > 0 && num_characters % limits.max_text == 0;
    run = is_space == run_is_space && !text_is_full ? run + 1 : 1;
    run_is_space = is_space;
    if (text_is_full || run > limits.max_run) {
      pieces.push_back(text.substr(begin, at - begin));
      begin = at;
      run = 1;
    }
    ++num_characters;
    at += step.length;
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

}  // namespace quire
