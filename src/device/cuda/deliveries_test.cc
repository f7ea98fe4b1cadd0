#include "device/cuda/deliveries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

constexpr size_t kPiece = 100;  // values

// Pieces of 0, 1, 2 ... one behind the other, all of them written by the host to the same place.
std::vector<int32_t> Brought(Deliveries& deliveries, size_t pieces, size_t values,
                             const Stream& stream) {
  const DeviceVector<int32_t> device(std::vector<int32_t>(pieces * values, -1));
  const PinnedBuffer pinned("test", ByteOffset(values * sizeof(int32_t)));
  const std::span<int32_t> list(reinterpret_cast<int32_t*>(pinned.data()), values);
  for (size_t i = 0; i < pieces; ++i) {
    std::ranges::fill(list, static_cast<int32_t>(i));
    const auto there = deliveries.BringList(device.span().subspan(i * values),
                                            std::span<const int32_t>(list), "a piece");
    EXPECT_EQ(there.data(), device.span().data() + i * values);
    EXPECT_EQ(there.size(), values);
    if (!deliveries.has_room()) stream.Synchronize();
  }
  deliveries.Deliver();
  return device.Values(stream);
}

std::vector<int32_t> Counted(size_t pieces, size_t values) {
  std::vector<int32_t> expected;
  for (size_t i = 0; i < pieces; ++i)
    expected.insert(expected.end(), values, static_cast<int32_t>(i));
  return expected;
}

// More than one launch takes, more than there is room for at once, and pieces larger than the room.
TEST(CudaDeliveriesTest, EveryPieceArrivesThoughTheHostWritesTheNextToWhereItWas) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const PinnedBuffer room("test", ByteOffset(int64_t{64} << 10));
  for (const size_t bytes : {size_t{1} << 10, size_t{64} << 10}) {
    Deliveries deliveries(stream, room.bytes().first(bytes));
    EXPECT_EQ(Brought(deliveries, 40, kPiece, stream), Counted(40, kPiece)) << bytes;
    EXPECT_EQ(Brought(deliveries, 3, 10'000, stream), Counted(3, 10'000)) << bytes;
  }
  Deliveries without(stream, {});
  EXPECT_FALSE(without.has_room());
  EXPECT_EQ(Brought(without, 3, kPiece, stream), Counted(3, kPiece));
}

TEST(CudaDeliveriesTest, WhatIsClearedDoesNotArrive) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const PinnedBuffer room("test", ByteOffset(int64_t{1} << 10));
  const DeviceVector<int32_t> device({7});
  const int32_t value = 8;
  Deliveries deliveries(stream, room.bytes());
  deliveries.Bring(device.bytes(), std::as_bytes(std::span(&value, 1)), "a value");
  deliveries.Clear();
  deliveries.Deliver();
  EXPECT_EQ(device.Values(stream), std::vector<int32_t>{7});
}

TEST(CudaDeliveriesTest, MoreThanTheDeviceHasRoomForIsOurFault) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const PinnedBuffer room("test", ByteOffset(int64_t{1} << 10));
  const DeviceVector<int32_t> device({7});
  const int32_t values[2] = {8, 9};
  for (const bool has_room : {false, true}) {
    Deliveries deliveries(stream, has_room ? room.bytes() : std::span<std::byte>());
    EXPECT_THROW(deliveries.Bring(device.bytes(), std::as_bytes(std::span(values)), "two values"),
                 InternalError);
  }
}

}  // namespace
}  // namespace quire::cuda
