#include "base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace quire {
namespace {

constexpr size_t kLongestWord = 256;  // the longest name that file systems take is 255 bytes

// Letters added, left out, replaced, or swapped with the next one.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> NearestName(std::string_view word, std::span<const std::string> names) {
  if (word.empty() || word.size() > kLongestWord) return std::nullopt;
  const std::string* nearest = nullptr;
  // Up to a third of the letters, and one of a short word.
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  std::vector<const std::string*> longer;
  for (const std::string& name : names) {
    if (name.size() > kLongestWord) continue;
    if (word.size() >= 2 && name.starts_with(word)) longer.push_back(&name);
    const size_t distance = Distance(word, name);
    if (distance >= least || distance >= name.size()) continue;
    least = distance;
    nearest = &name;
  }
  if (nearest == nullptr && longer.size() == 1) nearest = longer[0];
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

std::string DidYouMean(std::string_view word, std::span<const std::string> names) {
  const std::optional<std::string> name = NearestName(word, names);
  return name ? fmt::format("; did you mean {}?", *name) : "";
}

}  // namespace quire
