#include "device/cuda/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

template <class Buffer>
void ExpectRefused(const char* name, ByteOffset bytes, const std::string& message) {
  try {
    Buffer buffer(name, bytes);
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacityExceeded);
    EXPECT_TRUE(std::string(error.what()).starts_with(message)) << error.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // CUDA's own note of it is gone
}

TEST(CudaMemoryTest, ANegativeSizeIsRefused) {
  EXPECT_THROW(DeviceBuffer("kv", ByteOffset(-1)), Error);
  EXPECT_THROW(PinnedBuffer("kv", ByteOffset(-1)), Error);
}

TEST(CudaMemoryTest, NoBytesNeedNoDevice) {
  const DeviceBuffer buffer("none", ByteOffset(0));
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.bytes().empty());
}

TEST(CudaMemoryTest, MoreThanTheDeviceHasIsNamed) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ExpectRefused<DeviceBuffer>(
      "kv pool", ByteOffset(int64_t{1} << 50),
      "kv pool: cannot take 1125899906842624 bytes of device memory; the device has ");
  ExpectRefused<PinnedBuffer>("uploads", ByteOffset(int64_t{1} << 50),
                              "uploads: cannot take 1125899906842624 bytes of pinned host memory");
}

TEST(CudaMemoryTest, KernelsAndCopiesReachTheLastByte) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  for (const size_t count : {size_t{1}, size_t{255}, size_t{257}, size_t{1} << 20}) {
    const DeviceVector<int32_t> values(std::vector<int32_t>(count, 40));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.bytes().data()) % 256, 0u);
    AddToAll(values.span(), 2, stream);
    EXPECT_EQ(values.Values(stream), std::vector<int32_t>(count, 42));
  }
}

TEST(CudaMemoryTest, ReachesPast32BitsAndMoves) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const int64_t bytes = (int64_t{4} << 30) + 4;
  DeviceBuffer buffer("large", ByteOffset(bytes));
  std::byte* const data = buffer.data();
  DeviceBuffer moved = std::move(buffer);
  EXPECT_EQ(buffer.data(), nullptr);  // NOLINT: a moved-from buffer is empty by contract
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.size(), ByteOffset(bytes));
  int32_t last = 0;
  FillAndWait(moved.bytes(), 1, "memset");
  Check(cudaDeviceSynchronize(), "memset");
  const std::span<int32_t> tail{reinterpret_cast<int32_t*>(moved.data() + bytes - 4), 1};
  AddToAll(tail, 1, stream);
  stream.Synchronize();
  CopyAndWait(&last, tail.data(), 4, "memcpy");
  EXPECT_EQ(last, 0x01010102);
}

TEST(CudaMemoryTest, PinnedMemoryIsTheHostsToo) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const PinnedBuffer pinned("test", ByteOffset(12));
  const DeviceVector<int32_t> values({1, 2, 3});
  Check(cudaMemcpyAsync(pinned.data(), values.bytes().data(), 12, cudaMemcpyDeviceToHost,
                        stream.get()),
        "memcpy");
  stream.Synchronize();
  std::vector<int32_t> read(3);
  std::memcpy(read.data(), pinned.data(), 12);
  EXPECT_EQ(read, (std::vector<int32_t>{1, 2, 3}));
}

struct Pieces {
  std::span<int32_t> counts, sums;
};

Pieces LayOut(Carver& carver) {
  return {.counts = carver.Take<int32_t>(3), .sums = carver.Take<int32_t>(5)};
}

TEST(CudaMemoryTest, TheHostsLayoutFunctionsLayOutTheDevice) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Carver counter;
  LayOut(counter);
  const DeviceVector<int32_t> memory(
      std::vector<int32_t>(static_cast<size_t>(counter.used().raw()) / 4, 7));
  Carver carver(memory.bytes(), MemorySide::kDevice);
  const Pieces pieces = LayOut(carver);
  EXPECT_EQ(carver.used(), counter.used());
  AddToAll(pieces.sums, 1, stream);
  std::vector<int32_t> expected(32, 7);  // two lines of 64 bytes
  for (int i = 0; i < 5; ++i) expected[16 + i] = 8;
  EXPECT_EQ(memory.Values(stream), expected);
  const DeviceBuffer buffer("arena", counter.used());
  Carver over_buffer = DeviceCarver(buffer);
  EXPECT_EQ(LayOut(over_buffer).counts.data(), reinterpret_cast<int32_t*>(buffer.data()));
}

}  // namespace
}  // namespace quire::cuda
