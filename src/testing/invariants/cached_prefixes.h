// What a prefix cache holds, as a plain list of token strings: the naive model that the engine's
// cached_tokens are held against. Nothing is ever evicted from it.
#ifndef QUIRE_TESTING_INVARIANTS_CACHED_PREFIXES_H_
#define QUIRE_TESTING_INVARIANTS_CACHED_PREFIXES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"

namespace quire::testing {

class CachedPrefixes {
 public:
  explicit CachedPrefixes(PageSize page_size) : page_size_(page_size) {}

  // The tokens of a sequence that has ended.
  void Add(const std::string& salt, std::span<const int32_t> tokens) {
    if (!tokens.empty()) cached_[salt].emplace_back(tokens.begin(), tokens.end());
  }
  // Those of one that goes on: its last page may still be written to.
  void AddWholePages(const std::string& salt, std::span<const int32_t> tokens) {
    const auto page = static_cast<size_t>(page_size_.raw());
    Add(salt, tokens.first(tokens.size() / page * page));
  }

  // What another has.
  void AddAll(const CachedPrefixes& other) {
    for (const auto& [salt, all] : other.cached_) {
      for (const std::vector<int32_t>& tokens : all) Add(salt, tokens);
    }
  }

  // How many tokens at the start of `prompt` are cached, token by token; the last one never counts. With
  // rows of a draft layer the token behind them has to be the same, too.
  int64_t Find(const std::string& salt, std::span<const int32_t> prompt,
               bool has_draft_rows = false) const {
    int64_t longest = 0;
    const auto found = cached_.find(salt);
    if (found == cached_.end()) return longest;
    for (const std::vector<int32_t>& tokens : found->second) {
      const auto shared = std::ranges::mismatch(tokens, prompt).in1 - tokens.begin();
      const int64_t behind = has_draft_rows ? 1 : 0;
      longest = std::max<int64_t>(longest, std::min(shared - behind, std::ssize(prompt) - 1));
    }
    return longest;
  }

 private:
  PageSize page_size_;
  std::map<std::string, std::vector<std::vector<int32_t>>> cached_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_CACHED_PREFIXES_H_
