#include "device/buffer.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"

namespace quire {
namespace {

TEST(BufferTest, IsZeroAndReachesPast32Bits) {
  Buffer buffer("kv", ByteOffset(int64_t{3} << 30));
  EXPECT_EQ(buffer.bytes()[0], std::byte{0});
  buffer.bytes()[(size_t{3} << 30) - 1] = std::byte{7};
  Buffer moved = std::move(buffer);
  EXPECT_EQ(moved.bytes()[(size_t{3} << 30) - 1], std::byte{7});
  EXPECT_EQ(buffer.data(), nullptr);  // NOLINT: a moved-from buffer is empty by contract
}

TEST(BufferTest, ASizeTheMachineRefusesIsNamed) {
  try {
    Buffer buffer("kv pool", ByteOffset(int64_t{1} << 62));
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacityExceeded);
    EXPECT_NE(std::string(error.what()).find("kv pool: cannot reserve 4611686018427387904 bytes"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Buffer("kv", ByteOffset(-1)), Error);
}

}  // namespace
}  // namespace quire
