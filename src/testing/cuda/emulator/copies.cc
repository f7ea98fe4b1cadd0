#include "testing/cuda/emulator/copies.h"

#include <cuda.h>

#include <cstring>
#include <vector>

#include "testing/cuda/emulator/later.h"
#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/phase.h"

namespace quire::emulator {
namespace {

constexpr uint32_t kElementBytes = 2, kChunkBytes = 16;

// Where byte `address` of a box lies: chunks of 16 bytes are permuted by the number of their 128 bytes.
uint32_t Permuted(uint32_t address, CUtensorMapSwizzle swizzle) {
  const uint32_t chunks = swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3 : 7;
  return address ^ ((address >> 7 & chunks) << 4);
}

void BringBox(uint32_t to, std::byte* panel, const CUtensorMap& map,
              const std::array<int32_t, 3>& at) {
  const uint32_t row_bytes = map.box[0] * kElementBytes;
  uint32_t place = 0;
  for (uint32_t matrix = 0; matrix < map.box[2]; ++matrix) {
    for (uint32_t row = 0; row < map.box[1]; ++row) {
      for (uint32_t byte = 0; byte < row_bytes; byte += kChunkBytes, place += kChunkBytes) {
        std::byte chunk[kChunkBytes] = {};
        for (uint32_t i = 0; i < kChunkBytes; i += kElementBytes) {
          const int64_t where[3] = {at[0] + int64_t{(byte + i) / kElementBytes},
                                    at[1] + int64_t{row}, at[2] + int64_t{matrix}};
          const std::byte* from = map.data;
          bool is_there = true;
          for (int d = 0; d < 3; ++d) {
            is_there &= where[d] >= 0 && where[d] < static_cast<int64_t>(map.size[d]);
            from += where[d] * static_cast<int64_t>(map.stride[d]);
          }
          if (is_there) std::memcpy(chunk + i, from, kElementBytes);
        }
        std::memcpy(panel + (Permuted(to + place, map.swizzle) - to), chunk, kChunkBytes);
      }
    }
  }
}

}  // namespace

void CopyBox(uint32_t to, const void* map, std::array<int32_t, 3> at, uint32_t barrier) {
  const auto& tensor = *static_cast<const CUtensorMap*>(map);
  const uint32_t place = PlaceOf(to);
  if (place % 128 != 0) Misuse("a box whose place is no multiple of 128");
  const uint32_t bytes = tensor.box[0] * tensor.box[1] * tensor.box[2] * kElementBytes;
  AtShared(to + bytes - 1);
  Later([place, to, tensor, at, bytes, barrier] {
    BringBox(place, AtShared(to), tensor, at);
    BytesAreThere(PhaseAt(barrier), bytes);
  });
}

void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier) {
  if ((to | bytes | static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from))) % 16 != 0) {
    Misuse("a copy of bytes that are no multiples of 16");
  }
  AtShared(to + bytes - 1);
  Later([to, from, bytes, barrier] {
    std::memcpy(AtShared(to), from, bytes);
    BytesAreThere(PhaseAt(barrier), bytes);
  });
}

void StoreThere(uint32_t to, const void* values, uint32_t bytes, uint32_t barrier) {
  const auto* first = static_cast<const std::byte*>(values);
  Later([to, all = std::vector<std::byte>(first, first + bytes), barrier] {
    std::memcpy(AtShared(to), all.data(), all.size());
    BytesAreThere(PhaseAt(barrier), static_cast<uint32_t>(all.size()));
  });
}

}  // namespace quire::emulator
