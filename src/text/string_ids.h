// A map from strings to ids that is filled once and then only read: open addressing over hashes, with
// the strings one behind the other.
#ifndef QUIRE_TEXT_STRING_IDS_H_
#define QUIRE_TEXT_STRING_IDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

class StringIds {
 public:
  // False, and nothing happens, if the string is there already. `id` is not negative.
  bool Insert(std::string_view string, int32_t id);
  std::optional<int32_t> Find(std::string_view string) const;

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t begin = 0;  // in strings_
    uint32_t length = 0;
    int32_t id = 0;
  };

  // The place of `string` in slots_: of its entry, or the empty one where it would go.
  size_t SlotOf(std::string_view string, uint64_t hash) const;
  void Grow();

  std::string strings_ = {};
  std::vector<Entry> entries_ = {};
  // A power of two of them, at most half in use: an entry's index and some bits of its hash, so that
  // most strings that are not there are told apart without a look at entries_.
  struct Slot {
    int32_t entry = -1;
    uint32_t hash_bits = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(16);
};

}  // namespace quire

#endif  // QUIRE_TEXT_STRING_IDS_H_
