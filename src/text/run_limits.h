// Very long texts in pieces, as Kimi's tokenizer takes them: no token reaches from one piece into the
// next, and not even a special token is found across.
#ifndef QUIRE_TEXT_RUN_LIMITS_H_
#define QUIRE_TEXT_RUN_LIMITS_H_

#include <cstddef>
#include <string_view>
#include <vector>

namespace quire {

// In characters.
struct RunLimits {
  size_t max_text = 0;  // of a text, before runs are looked at
  size_t max_run = 0;   // of characters that all are white space, or all are not
};

// The pieces of `text`, which is UTF-8: cut after every max_text characters, and wherever a run
// would get longer than max_run. White space is what Python's str.isspace says.
std::vector<std::string_view> CutLongRuns(std::string_view text, const RunLimits& limits);

}  // namespace quire

#endif  // QUIRE_TEXT_RUN_LIMITS_H_
