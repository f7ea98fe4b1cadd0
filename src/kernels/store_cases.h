// The formats of stores and their rows, for every backend's test.
#ifndef QUIRE_KERNELS_STORE_CASES_H_
#define QUIRE_KERNELS_STORE_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attn/kv_layout.h"
#include "base/units.h"
#include "testing/paged_batch.h"

namespace quire::testing {

struct FormatCase {
  const char* name;
  KvFormat format;
  KvDims dims;
  bool any_page_size = true;  // false: multiples of 16 only
};

inline const FormatCase kFormatCases[] = {
    {"f32", KvFormat::kLatentF32, {512, 64}},
    {"bf16", KvFormat::kLatentBf16, {512, 64}},
    {"fp8", KvFormat::kLatentFp8, {512, 64}},
    {"fp8_minicpm", KvFormat::kLatentFp8, {256, 32}},
    {"fp8_odd_dims", KvFormat::kLatentFp8, {130, 6}},
    {"bf16_odd_dims", KvFormat::kLatentBf16, {21, 5}},
    {"f32_no_rope", KvFormat::kLatentF32, {40, 0}},
    {"index_f32", KvFormat::kIndexKeyF32, {128, 0}},
    {"index_bf16", KvFormat::kIndexKeyBf16, {128, 0}},
    {"index_bf16_odd_dim", KvFormat::kIndexKeyBf16, {21, 0}},
    {"index", KvFormat::kIndexKeyFp8, {128, 0}},
    {"index_preshuffled", KvFormat::kIndexKeyFp8Preshuffled, {128, 0}, false},
};

inline std::vector<Slot> ShuffledSlots(int64_t first, int64_t end, uint64_t seed) {
  std::vector<Slot> slots;
  for (int64_t s = first; s < end; ++s) slots.push_back(Slot(s));
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(seed));
  return slots;
}

inline std::vector<float> RowsFor(std::span<const Slot> slots, int64_t values) {
  std::vector<float> rows;
  for (Slot slot : slots) {
    const std::vector<float> row = MadeUpValues(5, slot.raw(), values);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

template <class Fn>
void ForAllCases(Fn fn) {
  for (const FormatCase& c : kFormatCases) {
    for (int page_size : {1, 2, 3, 16, 61, 64, 128, 256}) {
      if (!c.any_page_size && page_size % 16 != 0) continue;
      SCOPED_TRACE(std::string(c.name) + ", page size " + std::to_string(page_size));
      fn(c, page_size);
    }
  }
}

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_STORE_CASES_H_
