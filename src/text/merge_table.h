// What two tokens beside each other become, and how urgent that is.
#ifndef QUIRE_TEXT_MERGE_TABLE_H_
#define QUIRE_TEXT_MERGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

struct Merge {
  int32_t rank = 0;  // the lowest goes first
  int32_t result = -1;
};

class MergeTable {
 public:
  explicit MergeTable(size_t num_merges);  // at most so many

  // A later merge of the same two replaces an earlier one.
  void Insert(int32_t left, int32_t right, const Merge& merge);

  // Null if they do not merge.
  const Merge* Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = 0;
    Merge merge = {};  // result -1: an empty slot
  };

  size_t SlotOf(uint64_t pair) const;

  std::vector<Slot> slots_;  // a power of two of them, at most half in use
};

}  // namespace quire

#endif  // QUIRE_TEXT_MERGE_TABLE_H_
