#include "text/string_ids.h"

#include <cstring>
#include <limits>

#include "base/error.h"

namespace quire {
namespace {

// The finalizer of splitmix64: every bit of the result depends on every bit of x.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t Hash(std::string_view string) {
  uint64_t hash = string.size();
  while (string.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, string.data(), 8);
    hash = Mix(hash ^ word) + word;
    string.remove_prefix(8);
  }
  uint64_t word = 0;
  std::memcpy(&word, string.data(), string.size());
  return Mix(hash ^ word);
}

uint32_t HighBits(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

size_t StringIds::SlotOf(std::string_view string, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.entry < 0) return at;
    if (slot.hash_bits != HighBits(hash)) continue;
    const Entry& entry = entries_[slot.entry];
    if (string == std::string_view(strings_).substr(entry.begin, entry.length)) return at;
  }
}

std::optional<int32_t> StringIds::Find(std::string_view string) const {
  const Slot& slot = slots_[SlotOf(string, Hash(string))];
  if (slot.entry < 0) return std::nullopt;
  return entries_[slot.entry].id;
}

bool StringIds::Insert(std::string_view string, int32_t id) {
  const uint64_t hash = Hash(string);
  if (slots_[SlotOf(string, hash)].entry >= 0) return false;
  if (2 * (entries_.size() + 1) > slots_.size()) Grow();
  QUIRE_CHECK(strings_.size() + string.size() <= std::numeric_limits<uint32_t>::max());
  slots_[SlotOf(string, hash)] = {static_cast<int32_t>(entries_.size()), HighBits(hash)};
  entries_.push_back({.hash = hash,
                      .begin = static_cast<uint32_t>(strings_.size()),
                      .length = static_cast<uint32_t>(string.size()),
                      .id = id});
  strings_ += string;
  return true;
}

void StringIds::Grow() {
  slots_.assign(2 * slots_.size(), Slot{});
  const size_t mask = slots_.size() - 1;
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t at = entries_[i].hash & mask;
    while (slots_[at].entry >= 0) at = (at + 1) & mask;
    slots_[at] = {static_cast<int32_t>(i), HighBits(entries_[i].hash)};
  }
}

}  // namespace quire
