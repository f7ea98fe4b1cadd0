#include "device/cuda/upload.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_memory.h"
#include "device/thread_pool.h"

namespace quire::cuda {
namespace {

std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

constexpr std::byte kUntouched{0xA5};

// A place on the device between guard bytes.
class GuardedPlace {
 public:
  explicit GuardedPlace(size_t size)
      : size_(size), memory_(std::vector<std::byte>(size + 2 * kGuard, kUntouched)) {}

  std::span<std::byte> bytes() const { return memory_.bytes().subspan(kGuard, size_); }

  void ExpectHolds(const std::vector<std::byte>& expected, const Stream& stream) const {
    std::vector<std::byte> all(size_ + 2 * kGuard, kUntouched);
    std::memcpy(all.data() + kGuard, expected.data(), expected.size());
    EXPECT_TRUE(memory_.Values(stream) == all) << size_ << " bytes";
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t size_;
  DeviceVector<std::byte> memory_;
};

TEST(CudaUploadTest, AnySizeArrivesWholeAndNothingBesideIt) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  Uploader uploader(executor, ByteOffset(2 * 64));
  for (const size_t size : {0, 1, 63, 64, 65, 127, 128, 129, 1000, 12345}) {
    const std::vector<std::byte> from = RandomBytes(size, static_cast<uint32_t>(size));
    const GuardedPlace to(size);
    uploader.Upload(from, to.bytes());
    uploader.Finish();
    to.ExpectHolds(from, uploader.stream());
  }
}

TEST(CudaUploadTest, ManyUploadsFollowOneAnotherThroughTheSameHalves) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ThreadPool executor(4);
  Uploader uploader(executor, ByteOffset(int64_t{5} << 20));  // halves of 2.5 MiB: several slices
  std::vector<std::vector<std::byte>> sources;
  std::vector<GuardedPlace> places;
  for (const size_t size : {7u << 20, 3u, (1u << 20) + 1, 0u, (5u << 20) - 1, 999'983u}) {
    sources.push_back(RandomBytes(size, 1));
    places.emplace_back(size);
    // The source may go as soon as Upload returns.
    std::vector<std::byte> source = sources.back();
    uploader.Upload(source, places.back().bytes());
    source.assign(source.size(), std::byte{0});
  }
  uploader.Finish();
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].ExpectHolds(sources[i], uploader.stream());
  }
}

TEST(CudaUploadTest, ProgressCountsEveryByteOnce) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  Uploader uploader(executor, ByteOffset(200));  // halves of 64
  const std::vector<std::byte> from = RandomBytes(150, 2);
  const GuardedPlace to(150);
  std::vector<int64_t> seen;
  const auto note = [&](ByteOffset done) { seen.push_back(done.raw()); };
  uploader.Upload(from, to.bytes(), note);
  uploader.Upload(from, to.bytes(), note);
  EXPECT_EQ(seen, (std::vector<int64_t>{64, 128, 150, 214, 278, 300}));
}

TEST(CudaUploadTest, WhatIsMadeOnTheWayIsCutBetweenElements) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  Uploader uploader(executor, ByteOffset(2 * 64));
  constexpr size_t kRow = 12;
  const GuardedPlace to(kRow * 23);
  std::vector<std::byte> expected(kRow * 23);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(i * 7);
  const auto fill = [&](std::span<std::byte> piece, ByteOffset begin) {
    EXPECT_EQ(begin.raw() % static_cast<int64_t>(kRow), 0);
    EXPECT_EQ(piece.size() % kRow, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % Uploader::kAlignment, 0u);
    std::memcpy(piece.data(), expected.data() + begin.raw(), piece.size());
  };
  uploader.UploadMade(to.bytes(), ByteOffset(kRow), fill, [](ByteOffset) {});
  uploader.Finish();
  to.ExpectHolds(expected, uploader.stream());
}

TEST(CudaUploadTest, AFillThatThrowsLeavesTheUploaderUsable) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  Uploader uploader(executor, ByteOffset(2 * 64));
  const GuardedPlace to(1000);
  const auto fill = [](std::span<std::byte>, ByteOffset begin) {
    if (begin > ByteOffset(100)) throw std::runtime_error("truncated file");
  };
  EXPECT_THROW(uploader.UploadMade(to.bytes(), ByteOffset(1), fill, [](ByteOffset) {}),
               std::runtime_error);
  const std::vector<std::byte> from = RandomBytes(1000, 3);
  uploader.Upload(from, to.bytes());
  uploader.Finish();
  to.ExpectHolds(from, uploader.stream());
}

TEST(CudaUploadTest, SizesThatCannotBeAreRefused) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  EXPECT_THROW(Uploader(executor, ByteOffset(127)), Error);
  Uploader uploader(executor, ByteOffset(128));
  const std::vector<std::byte> from(10);
  const GuardedPlace to(11);
  EXPECT_THROW(uploader.Upload(from, to.bytes()), Error);
  const auto fill = [](std::span<std::byte>, ByteOffset) {};
  const auto ignore = [](ByteOffset) {};
  EXPECT_THROW(uploader.UploadMade(to.bytes(), ByteOffset(65), fill, ignore), Error);
  EXPECT_THROW(uploader.UploadMade(to.bytes(), ByteOffset(0), fill, ignore), Error);
  to.ExpectHolds(std::vector<std::byte>(11, kUntouched), uploader.stream());
}

}  // namespace
}  // namespace quire::cuda
