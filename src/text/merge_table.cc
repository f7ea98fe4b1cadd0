#include "text/merge_table.h"

#include <algorithm>
#include <bit>

namespace quire {
namespace {

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t num_merges)
    : slots_(std::bit_ceil(2 * std::max<size_t>(num_merges, 1))) {}

size_t MergeTable::SlotOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t hash = pair * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  hash ^= hash >> 32;
  size_t at = hash & mask;
  while (slots_[at].merge.result >= 0 && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

void MergeTable::Insert(int32_t left, int32_t right, const Merge& merge) {
  const uint64_t pair = PairOf(left, right);
  slots_[SlotOf(pair)] = {pair, merge};
}

const Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[SlotOf(PairOf(left, right))];
  return slot.merge.result >= 0 ? &slot.merge : nullptr;
}

}  // namespace quire
