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

// Calls per_chunk(a chunk of the panel, which begins at `address`, and where its elements are in the tensor, or null).
template <class PerChunk>
void ForEachChunk(uint32_t address, std::byte* panel, const CUtensorMap& map,
                  const std::array<int32_t, 3>& at, PerChunk per_chunk) {
  const uint32_t row_bytes = map.box[0] * kElementBytes;
  uint32_t place = 0;
  for (uint32_t matrix = 0; matrix < map.box[2]; ++matrix) {
    for (uint32_t row = 0; row < map.box[1]; ++row) {
      for (uint32_t byte = 0; byte < row_bytes; byte += kChunkBytes, place += kChunkBytes) {
        std::array<std::byte*, kChunkBytes / kElementBytes> elements;
        for (uint32_t i = 0; i < elements.size(); ++i) {
          const int64_t where[3] = {at[0] + int64_t{byte / kElementBytes + i}, at[1] + int64_t{row},
                                    at[2] + int64_t{matrix}};
          auto* element = const_cast<std::byte*>(map.data);  // boxes are stored, too
          bool is_there = true;
          for (int d = 0; d < 3; ++d) {
            is_there &= where[d] >= 0 && where[d] < static_cast<int64_t>(map.size[d]);
            element += where[d] * static_cast<int64_t>(map.stride[d]);
          }
          elements[i] = is_there ? element : nullptr;
        }
        per_chunk(panel + (Permuted(address + place, map.swizzle) - address), elements);
      }
    }
  }
}

void BringBox(uint32_t to, std::byte* panel, const CUtensorMap& map,
              const std::array<int32_t, 3>& at) {
  ForEachChunk(to, panel, map, at, [](std::byte* chunk, const auto& elements) {
    for (std::byte* from : elements) {
      if (from != nullptr) std::memcpy(chunk, from, kElementBytes);
      if (from == nullptr) std::memset(chunk, 0, kElementBytes);
      chunk += kElementBytes;
    }
  });
}

void TakeBox(uint32_t from, std::byte* panel, const CUtensorMap& map,
             const std::array<int32_t, 3>& at) {
  ForEachChunk(from, panel, map, at, [](const std::byte* chunk, const auto& elements) {
    for (std::byte* to : elements) {
      if (to != nullptr) std::memcpy(to, chunk, kElementBytes);
      chunk += kElementBytes;
    }
  });
}

// Of a box's panel at shared address `address`.
uint32_t PanelBytes(const CUtensorMap& tensor, uint32_t address) {
  if (PlaceOf(address) % 128 != 0) Misuse("a box whose place is no multiple of 128");
  const uint32_t bytes = tensor.box[0] * tensor.box[1] * tensor.box[2] * kElementBytes;
  AtShared(address + bytes - 1);
  return bytes;
}

}  // namespace

void CopyBox(uint32_t to, const void* map, std::array<int32_t, 3> at, uint32_t barrier) {
  const auto& tensor = *static_cast<const CUtensorMap*>(map);
  const uint32_t bytes = PanelBytes(tensor, to);
  Later([to, tensor, at, bytes, barrier] {
    BringBox(PlaceOf(to), AtShared(to), tensor, at);
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

void StoreBox(const void* map, uint32_t from, std::array<int32_t, 3> at) {
  const auto& tensor = *static_cast<const CUtensorMap*>(map);
  PanelBytes(tensor, from);
  StoreLater([place = PlaceOf(from), panel = AtShared(from), tensor, at] {
    TakeBox(place, panel, tensor, at);
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
