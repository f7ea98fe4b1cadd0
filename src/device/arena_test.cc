#include "device/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>

#include "base/error.h"
#include "device/buffer.h"

namespace quire {
namespace {

struct Pieces {
  std::span<float> floats;
  std::span<std::byte> bytes;
  std::span<int64_t> empty;
};

Pieces LayOut(Carver& carver) {
  return {.floats = carver.Take<float>(5),
          .bytes = carver.TakeBytes(ByteOffset(65)),
          .empty = carver.Take<int64_t>(0)};
}

TEST(ArenaTest, WhatWasCountedIsExactlyWhatIsHandedOut) {
  Carver counter;
  const Pieces none = LayOut(counter);
  EXPECT_TRUE(none.floats.empty());
  EXPECT_EQ(counter.used(), ByteOffset(64 + 128));

  const Buffer memory("arena", counter.used());
  Carver carver(memory.bytes());
  const Pieces pieces = LayOut(carver);
  EXPECT_EQ(carver.used(), memory.size());
  EXPECT_EQ(pieces.floats.size(), 5u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(pieces.floats.data()), memory.data());
  EXPECT_EQ(pieces.bytes.data(), memory.data() + 64);
  EXPECT_EQ(pieces.bytes.size(), 65u);
}

// Memory that stands for a device's: any access of the host to it ends the test.
class Untouchable {
 public:
  Untouchable() : data_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Untouchable() { munmap(data_, kBytes); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), kBytes}; }

 private:
  static constexpr size_t kBytes = 4096;
  void* data_;
};

TEST(ArenaTest, MemoryOfADeviceIsLaidOutAlikeAndNotTouched) {
  const Untouchable memory;
  Carver carver(memory.bytes(), MemorySide::kDevice);
  const Pieces pieces = LayOut(carver);
  EXPECT_EQ(carver.used(), ByteOffset(64 + 128));
  EXPECT_EQ(pieces.floats.size(), 5u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(pieces.floats.data()), memory.bytes().data());
  EXPECT_EQ(pieces.bytes.data(), memory.bytes().data() + 64);
  EXPECT_THROW(carver.TakeBytes(ByteOffset(memory.bytes().size())), InternalError);
}

TEST(ArenaTest, TakingMoreThanThereIsIsOurFault) {
  const Buffer memory("arena", ByteOffset(128));
  Carver carver(memory.bytes());
  carver.Take<float>(32);
  EXPECT_THROW(carver.TakeBytes(ByteOffset(1)), InternalError);
}

}  // namespace
}  // namespace quire
