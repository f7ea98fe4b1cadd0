// "Did you mean": what is most like a name that is not there.
#ifndef QUIRE_BASE_SUGGEST_H_
#define QUIRE_BASE_SUGGEST_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire {

// The one of `names` that a person who typed `word` may have meant: the nearest by letters added,
// left out, replaced or swapped, if those are few; or the only one that begins with `word`.
// nullopt: none.
std::optional<std::string> NearestName(std::string_view word, std::span<const std::string> names);

// "; did you mean NAME?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> names);

}  // namespace quire

#endif  // QUIRE_BASE_SUGGEST_H_
