#include "device/arena.h"

#include "base/error.h"
#include "base/maths.h"

namespace quire {

Carver::Carver(std::span<std::byte> memory, MemorySide side) : memory_(memory), side_(side) {
  QUIRE_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAlignment == 0);
}

std::span<std::byte> Carver::TakeBytes(ByteOffset bytes) {
  QUIRE_CHECK(bytes >= ByteOffset(0), "a piece of {} bytes", bytes);
  const ByteOffset begin = used_;
  used_ += ByteOffset(RoundUp(bytes.raw(), static_cast<int64_t>(kAlignment)));
  if (counting()) return {};
  QUIRE_CHECK(used_ <= ByteOffset(memory_.size()), "arena: {} of {} bytes used, {} more wanted",
              begin, memory_.size(), bytes);
  return memory_.subspan(static_cast<size_t>(begin.raw()), static_cast<size_t>(bytes.raw()));
}

}  // namespace quire
