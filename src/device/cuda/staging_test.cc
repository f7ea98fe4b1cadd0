#include "device/cuda/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::cuda {
namespace {

TEST(StagingTest, PiecesStayUntilItIsClearedAndLieOnSixteenBytes) {
  alignas(16) std::byte room[64];
  Staging staging(room);
  std::vector<std::byte> source(20, std::byte{1});
  const auto first = staging.Put(source);
  std::ranges::fill(source, std::byte{2});
  const auto second = staging.Put(source);
  EXPECT_TRUE(std::ranges::all_of(first, [](std::byte b) { return b == std::byte{1}; }));
  EXPECT_TRUE(std::ranges::equal(second, source));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data()) % 16, 0u);
  EXPECT_TRUE(staging.Put(source).empty()) << "two pieces of 20 take 32 each";
  staging.Clear();
  EXPECT_EQ(staging.Put(source).data(), first.data());
}

TEST(StagingTest, WhatIsLargerThanTheRoomHasNone) {
  std::byte room[32];
  const std::vector<std::byte> source(33);
  EXPECT_TRUE(Staging(room).Put(source).empty());
  EXPECT_TRUE(Staging().Put(source).empty());
}

}  // namespace
}  // namespace quire::cuda
