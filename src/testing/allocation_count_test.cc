#include "testing/allocation_count.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>
#include <vector>

namespace quire::testing {
namespace {

// Compilers leave out allocations that nobody sees.
void* volatile seen;

template <class T>
T* See(T* memory) {
  seen = memory;
  return memory;
}

struct alignas(64) Wide {
  char bytes[64];
};

TEST(AllocationCountTest, CountsEveryFormOfNew) {
  const int64_t before = AllocationCount();
  delete See(new int);
  delete[] See(new int[3]);
  delete See(new Wide);
  delete[] See(new Wide[3]);
  delete See(new (std::nothrow) int);
  delete[] See(new (std::nothrow) int[3]);
  delete See(new (std::nothrow) Wide);
  delete[] See(new (std::nothrow) Wide[3]);
  EXPECT_EQ(AllocationCount() - before, 8);
}

TEST(AllocationCountTest, CountsOnAllThreads) {
  int64_t before = 0, after = 0;
  std::thread other([&] {
    before = AllocationCount();
    delete See(new int);
    after = AllocationCount();
  });
  other.join();
  EXPECT_EQ(after - before, 1);
}

TEST(AllocationCountTest, KnowsTheMostThatThereWas) {
  const int64_t before = AllocatedBytes();
  ResetPeakBytes();
  delete[] See(new char[100'000]);
  delete[] See(new char[1000]);
  EXPECT_EQ(AllocatedBytes(), before);
  EXPECT_GE(PeakBytes() - before, 100'000);
  EXPECT_LT(PeakBytes() - before, 101'000);
  ResetPeakBytes();
  EXPECT_EQ(PeakBytes(), before);
}

TEST(AllocationCountTest, WhatDoesNotAllocateCountsNothing) {
  std::vector<int> reserved;
  reserved.reserve(10);
  const int64_t before = AllocationCount();
  for (int i = 0; i < 10; ++i) reserved.push_back(i);
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace quire::testing
