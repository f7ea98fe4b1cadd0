// The emulated GPU itself: what it computes, and what it says of kernels that are wrong.
#include "testing/cuda/emulator/machine.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cuda/kernel.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/ptx/instructions.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "testing/cuda/emulator/machine_testing.h"

namespace quire::cuda {
namespace {

using emulator::RunGridAhead;

template <class T>
T* Shared(size_t bytes) {
  return reinterpret_cast<T*>(LaunchedShared<1024>() + bytes);
}

// ---- Threads ----

TEST(EmulatorTest, EveryThreadOfEveryCtaRunsOnceAndKnowsItsPlace) {
  std::vector<int> times(3 * 2 * 96);
  RunGrid({.ctas = dim3(3, 2), .threads = dim3(48, 2)}, [&] {
    const unsigned cta = blockIdx.x + gridDim.x * blockIdx.y;
    ++times[cta * 96 + threadIdx.y * blockDim.x + threadIdx.x];
  });
  EXPECT_EQ(times, std::vector<int>(times.size(), 1));
}

TEST(EmulatorTest, BarriersAndShufflesAddUpACta) {
  constexpr int kThreads = 160;
  std::vector<int> sums(kThreads);
  RunGrid({.ctas = 1, .threads = kThreads, .shared_bytes = 64}, [&] {
    int* const warps = Shared<int>(0);
    const int thread = static_cast<int>(threadIdx.x);
    int sum = thread;
    for (int half = 16; half >= 1; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (thread % 32 == 0) warps[thread / 32] = sum;
    __syncthreads();
    sums[threadIdx.x] = std::accumulate(warps, warps + kThreads / 32, 0);
  });
  EXPECT_EQ(sums, std::vector<int>(kThreads, kThreads * (kThreads - 1) / 2));
}

TEST(EmulatorTest, PartsOfAWarpMeetByThemselvesAndEndedLanesAreNotWaitedFor) {
  std::vector<unsigned> votes(32);
  RunGrid({.ctas = 1, .threads = 32}, [&] {
    const unsigned lane = threadIdx.x;
    if (lane >= 24) return;
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    votes[lane] = __ballot_sync(half, lane % 2 == 0);
  });
  for (unsigned lane = 0; lane < 24; ++lane) {
    EXPECT_EQ(votes[lane], lane < 16 ? 0x5555u : 0x550000u) << lane;
  }
}

TEST(EmulatorTest, WithoutABarrierSomeCtaReadsTooEarly) {
  constexpr unsigned kCtas = 16;
  const auto num_late = [](bool waits) {
    int late = 0;
    RunGrid({.ctas = kCtas, .threads = 64, .shared_bytes = 16}, [&] {
      int* const said = Shared<int>(0);
      if (threadIdx.x == 63) *said = 7;
      if (waits) __syncthreads();
      if (threadIdx.x == 0) late += *said == 7;
    });
    return late;
  };
  EXPECT_EQ(num_late(true), kCtas);
  EXPECT_LT(num_late(false), kCtas);
}

TEST(EmulatorTest, ThreadsThatWaitForEachOtherAreTold) {
  const std::string misuse = MisuseOf({.ctas = 1, .threads = 64}, [] {
    if (threadIdx.x < 32) SyncThreads<64>(3);
    __syncthreads();
  });
  EXPECT_EQ(misuse,
            "no thread can go on. CTA 0 (0 of its cluster): 32 threads from 32 on wait for "
            "__syncthreads; 32 threads from 0 on wait for barrier 3; ");
}

// ---- Barriers in shared memory, and what comes to it ----

TEST(EmulatorTest, BytesAreThereForWhoeverWaitsForThem) {
  constexpr unsigned kCtas = 16;
  const std::vector<float> from = {1, 2, 3, 4, 5, 6, 7, 8};
  int early = 0, right = 0;
  RunGrid({.ctas = kCtas, .threads = 32, .shared_bytes = 64}, [&] {
    float* const to = Shared<float>(0);
    auto& arrived = *Shared<PhaseBarrier>(32);
    if (threadIdx.x == 0) {
      arrived.Init(1);
      arrived.ArriveExpecting(32);
      CopyBytes(SharedAddress(to), reinterpret_cast<const std::byte*>(from.data()), 32,
                arrived.Address());
    }
    __syncwarp();
    if (threadIdx.x == 1) early += std::isnan(to[7]);  // shared memory holds ones at first
    arrived.Wait(0);
    if (threadIdx.x == 1) right += std::accumulate(to, to + 8, 0.0f) == 36;
  });
  EXPECT_GT(early, 0);
  EXPECT_EQ(right, kCtas);
}

TEST(EmulatorTest, ACtaDoesNotEndWhileBytesComeToIt) {
  const std::vector<float> from(4);
  const std::string misuse = MisuseOf({.ctas = 16, .threads = 1, .shared_bytes = 64}, [&] {
    auto& arrived = *Shared<PhaseBarrier>(32);
    arrived.Init(1);
    arrived.ArriveExpecting(16);
    CopyBytes(0, reinterpret_cast<const std::byte*>(from.data()), 16, arrived.Address());
  });
  EXPECT_NE(misuse.find("an address of a CTA that has ended"), std::string::npos) << misuse;
}

TEST(EmulatorTest, CopiesOfAThreadAreThereOnceTheirGroupIsWaitedFor) {
  constexpr unsigned kCtas = 16;
  const std::array<uint32_t, 8> from = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint32_t> seen;
  int early = 0;
  RunGrid({.ctas = kCtas, .threads = 1, .shared_bytes = 64}, [&] {
    const auto* bytes = reinterpret_cast<const std::byte*>(from.data());
    const uint32_t to = SharedAddress(LaunchedShared<16>());
    CopyAsync16(to, bytes, 16);
    CommitCopies();
    CopyAsync16(to + 16, bytes + 16, 8);  // and zeros behind the first eight bytes
    CommitCopies();
    WaitForCopies<1>();
    seen = {LoadShared4(to)};
    early += LoadShared4(to + 16) == 5;
    WaitForCopies<0>();
    for (uint32_t i = 0; i < 4; ++i) seen.push_back(LoadShared4(to + 16 + 4 * i));
    EXPECT_EQ(seen, (std::vector<uint32_t>{1, 5, 6, 0, 0}));
  });
  EXPECT_GT(early, 0);
  EXPECT_LT(early, kCtas);
}

// A box is brought to every CTA that is named, and each counts its bytes.
// Of two that are told of a thread's copies the second one is told of all.
TEST(EmulatorTest, CopiesOfAThreadAreThereForAllThatAreToldOfThem) {
  alignas(16) const std::array<uint32_t, 8> from = {1, 2, 3, 4, 5, 6, 7, 8};
  int early = 0, missing = 0;
  RunGrid({.ctas = 16, .threads = 32, .shared_bytes = 64}, [&] {
    auto* const told = Shared<PhaseBarrier>(32);
    if (threadIdx.x == 0) {
      told[0].Init(1);
      told[1].Init(1);
      for (uint32_t i = 0; i < 2; ++i) {
        CopyAsync16(SharedAddress(Shared<std::byte>(i * 16)),
                    reinterpret_cast<const std::byte*>(&from[i * 4]), 16);
        if (i == 1) early += *Shared<uint32_t>(0) != 1;
        told[i].ArriveAfterCopies();
      }
      told[1].Wait(0);
      missing += *Shared<uint32_t>(0) != 1 || *Shared<uint32_t>(16) != 5;
      told[0].Wait(0);
    }
  });
  EXPECT_GT(early, 0);
  EXPECT_EQ(missing, 0);
}

TEST(EmulatorTest, ABoxForSeveralCtasComesToEach) {
  std::vector<uint16_t> matrix(8 * 64);
  std::iota(matrix.begin(), matrix.end(), uint16_t{1});
  const CUtensorMap map = MakeTensorMap({.data = reinterpret_cast<const std::byte*>(matrix.data()),
                                         .rows = 8,
                                         .columns = 64,
                                         .row_bytes = 128,
                                         .box_rows = 8,
                                         .box_columns = 64,
                                         .matrices = 1,
                                         .matrix_bytes = 1024});
  std::vector<int> found(4);
  RunGrid({.ctas = 4, .threads = 32, .cluster = 4, .shared_bytes = 2048}, [&] {
    auto& arrived = *Shared<PhaseBarrier>(1024);
    if (threadIdx.x == 0) arrived.Init(1);
    SyncCluster();
    const bool is_told = RankInCluster() != 2;
    if (threadIdx.x == 0 && is_told) arrived.ArriveExpecting(1024);
    if (threadIdx.x == 0 && RankInCluster() == 1) {
      CopyBoxToCtas(SharedAddress(LaunchedShared<1024>()), &map, 0, 0, 0, arrived.Address(),
                    0b1011);
    }
    if (is_told) arrived.WaitInCluster(0);
    SyncCluster();
    if (threadIdx.x == 0) found[blockIdx.x] = *Shared<uint16_t>(PanelChunk(1, 0));
  });
  EXPECT_EQ(found, (std::vector<int>{65, 65, 0xffff, 65}));
}

TEST(EmulatorTest, BytesThatAreStoredAreThereOnceTheyAreWaitedFor) {
  std::vector<float> to(4);
  RunGrid({.ctas = 1, .threads = 1, .shared_bytes = 16}, [&] {
    float* const from = Shared<float>(0);
    for (int i = 0; i < 4; ++i) from[i] = static_cast<float>(i);
    StoreBytes(reinterpret_cast<std::byte*>(to.data()), SharedAddress(from), 16);
    WaitForStores();
    for (int i = 0; i < 4; ++i) from[i] = -1;
  });
  EXPECT_EQ(to, (std::vector<float>{0, 1, 2, 3}));
}

TEST(EmulatorTest, OfABoxThatIsStoredOnlyWhatTheTensorHasIs) {
  // 3 rows of 40 values, of which a box of 2 x 64 from row 2 and column 32 on has 8.
  std::vector<uint16_t> to(3 * 40);
  const CUtensorMap map = MakeTensorMap({.data = reinterpret_cast<const std::byte*>(to.data()),
                                         .rows = 3,
                                         .columns = 40,
                                         .row_bytes = 80,
                                         .box_rows = 2,
                                         .box_columns = 64,
                                         .matrices = 1,
                                         .matrix_bytes = 240});
  RunGrid({.ctas = 1, .threads = 1, .shared_bytes = 256}, [&] {
    uint16_t* const from = Shared<uint16_t>(0);
    for (uint16_t i = 0; i < 128; ++i) from[PanelChunk(i / 64, i % 64 / 8) / 2 + i % 8] = 1 + i;
    StoreBox(&map, SharedAddress(from), 32, 2, 0);
    WaitForStores();
    for (int i = 0; i < 128; ++i) from[i] = 0;
  });
  std::vector<uint16_t> expected(3 * 40);
  for (size_t i = 0; i < 8; ++i) expected[2 * 40 + 32 + i] = static_cast<uint16_t>(1 + i);
  EXPECT_EQ(to, expected);
}

TEST(EmulatorTest, StoresThatTheirThreadDoesNotWaitForAreAMisuse) {
  std::vector<float> to(4);
  const auto misuse_if_waited_by = [&](unsigned thread) {
    return MisuseOf({.ctas = 1, .threads = 2, .shared_bytes = 16}, [thread, &to] {
      if (threadIdx.x == 1) StoreBytes(reinterpret_cast<std::byte*>(to.data()), 0, 16);
      if (threadIdx.x == thread) WaitForStores();
      __syncthreads();  // another thread's wait is not enough, even so
    });
  };
  EXPECT_EQ(misuse_if_waited_by(1), "");
  EXPECT_EQ(misuse_if_waited_by(0),
            "thread 1 of CTA 0: an end of a thread that did not wait for its stores");
}

TEST(EmulatorTest, SharedMemoryIsWhatTheLaunchAskedFor) {
  const Grid grid = {.ctas = 1, .threads = 1, .shared_bytes = 64};
  EXPECT_EQ(MisuseOf(grid, [] { LoadShared4(64); }),
            "thread 0 of CTA 0: an address behind the shared memory that the launch asked for");
  EXPECT_EQ(MisuseOf(grid, [] { *Shared<int>(64) = 7; }),
            "thread 0 of CTA 0: a write behind the shared memory that the launch asked for");
  EXPECT_EQ(MisuseOf(grid, [] { LoadShared16(8); }),
            "thread 0 of CTA 0: an address that is no multiple of what is moved there");
}

TEST(EmulatorTest, ALaunchHas48KiBUnlessItsKernelIsAllowedMore) {
  void (*const kernel)() = [] {};
  cudaLaunchConfig_t config = {};
  config.dynamicSmemBytes = 48 << 10;
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaSuccess);
  config.dynamicSmemBytes += 16;
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaErrorInvalidValue);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(kernel, kAttribute, 64 << 10), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, kAttribute, 228 << 10), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(EmulatorTest, ABarrierThatIsUsedWronglyIsAMisuse) {
  const Grid grid = {.ctas = 1, .threads = 1, .shared_bytes = 64};
  EXPECT_EQ(MisuseOf(grid, [] { Shared<PhaseBarrier>(0)->Arrive(); }),
            "thread 0 of CTA 0: a barrier that is not initialised");
  EXPECT_EQ(MisuseOf(grid,
                     [] {
                       Shared<PhaseBarrier>(0)->Init(2);
                       Shared<PhaseBarrier>(0)->Arrive(3);
                     }),
            "thread 0 of CTA 0: an arrival that the barrier's phase does not expect");
  EXPECT_EQ(MisuseOf(grid,
                     [] {
                       Shared<PhaseBarrier>(0)->Init(2);
                       Shared<PhaseBarrier>(0)->Arrive();
                       Shared<PhaseBarrier>(0)->Wait(0);
                     }),
            "no thread can go on. CTA 0 (0 of its cluster): 1 threads from 0 on wait for a barrier "
            "in shared memory; ");
  // Bytes that were announced and never come.
  EXPECT_NE(MisuseOf(grid,
                     [] {
                       Shared<PhaseBarrier>(0)->Init(1);
                       Shared<PhaseBarrier>(0)->ArriveExpecting(16);
                       Shared<PhaseBarrier>(0)->Wait(0);
                     })
                .find("no thread can go on"),
            std::string::npos);
  EXPECT_NE(MisuseOf({.ctas = 1, .threads = 64},
                     [] {
                       if (threadIdx.x < 32) SyncThreads<64>(3);
                       if (threadIdx.x >= 32) SyncThreads<96>(3);
                     })
                .find("a barrier that threads expect different numbers at"),
            std::string::npos);
}

TEST(EmulatorTest, BoxesAreCutOutPermutedAndFilledWithZeros) {
  constexpr int kRows = 12, kColumns = 72, kStride = 80, kBoxRows = 8;
  std::vector<uint16_t> matrix(kRows * kStride);
  std::iota(matrix.begin(), matrix.end(), uint16_t{1});
  const CUtensorMap map = MakeTensorMap({.data = reinterpret_cast<const std::byte*>(matrix.data()),
                                         .rows = kRows,
                                         .columns = kColumns,
                                         .row_bytes = kStride * 2,
                                         .box_rows = kBoxRows,
                                         .box_columns = 64});
  constexpr int kFirstRow = 6, kFirstColumn = 16;
  int wrong = 0;
  RunGrid(kWarpgroupGrid, [&] {
    auto& arrived = *Shared<PhaseBarrier>(kBoxRows * 128);
    const uint32_t panel = SharedAddress(LaunchedShared<1024>());
    if (threadIdx.x == 0) {
      arrived.Init(1);
      arrived.ArriveExpecting(kBoxRows * 128);
      CopyBox(panel, &map, kFirstColumn, kFirstRow, arrived.Address());
      arrived.Wait(0);
      for (int r = 0; r < kBoxRows; ++r) {
        for (int c = 0; c < 64; ++c) {
          const int row = kFirstRow + r, column = kFirstColumn + c;
          const bool is_there = row < kRows && column < kColumns;
          uint16_t found;
          std::memcpy(&found,
                      LaunchedShared<1024>() +
                          PanelChunk(static_cast<uint32_t>(r), static_cast<uint32_t>(c / 8)) +
                          c % 8 * 2,
                      sizeof(found));
          wrong += found != (is_there ? matrix[static_cast<size_t>(row * kStride + column)] : 0);
        }
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

// ---- Clusters ----

TEST(EmulatorTest, CtasOfAClusterReadAndWriteEachOthersSharedMemory) {
  constexpr unsigned kCtas = 4;
  std::vector<float> sums(2 * kCtas);
  RunGrid({.ctas = 2 * kCtas, .threads = 32, .cluster = kCtas, .shared_bytes = 128}, [&] {
    float* const from_all = Shared<float>(0);
    auto& arrived = *Shared<PhaseBarrier>(64);
    if (threadIdx.x == 0) arrived.Init(1);
    SyncCluster();
    if (threadIdx.x == 0) {
      arrived.ArriveExpecting(kCtas * 4);
      for (uint32_t rank = 0; rank < kCtas; ++rank) {
        StoreAt(rank, SharedAddress(from_all + RankInCluster()), static_cast<float>(blockIdx.x),
                arrived.Address());
      }
    }
    arrived.WaitInCluster(0);
    if (threadIdx.x == 0) sums[blockIdx.x] = std::accumulate(from_all, from_all + kCtas, 0.0f);
    SyncCluster();
  });
  EXPECT_EQ(sums, (std::vector<float>{6, 6, 6, 6, 22, 22, 22, 22}));
}

TEST(EmulatorTest, MemoryOfACtaThatHasEndedIsAMisuse) {
  const std::string misuse =
      MisuseOf({.ctas = 2, .threads = 32, .cluster = 2, .shared_bytes = 64}, [] {
        if (RankInCluster() == 0) return;
        for (int i = 0; i < 100; ++i) clock64();  // the other one ends meanwhile
        *reinterpret_cast<int*>(emulator::AtShared(emulator::AddressIn(0, 0))) = 1;
      });
  EXPECT_NE(misuse.find("an address of a CTA that has ended"), std::string::npos) << misuse;
}

// ---- Kernels that begin before the one before them is done ----

TEST(EmulatorTest, WhatTheKernelBeforeWritesIsThereBehindATurn) {
  constexpr unsigned kClusters = 3, kCtas = 2;
  for (uint64_t first = 0; first < kClusters; ++first) {
    int value = 0, wrong = 0;
    std::vector<int> early(kClusters * kCtas);
    RunGridAhead(
        {.ctas = kClusters * kCtas, .threads = 64, .cluster = kCtas},
        [&] {
          if (threadIdx.x == 0) early[blockIdx.x] = value;
          if (threadIdx.x >= 32) TakeTurn();
          SyncThreads<64>(1);  // a turn that others have to wait for
          if (threadIdx.x < 32) TakeTurn();
          wrong += value != 1;
        },
        [&] { value = 1; }, first);
    std::vector<int> expected(kClusters * kCtas, 1);
    for (size_t i = 0; i < kCtas; ++i) expected[first * kCtas + i] = 0;
    EXPECT_EQ(early, expected);
    EXPECT_EQ(wrong, 0);
  }
}

TEST(EmulatorTest, AnEndWithoutATurnIsAMisuse) {
  int value = 0;
  std::string misuse;
  try {
    RunGridAhead(
        {.ctas = 2, .threads = 32}, [] {}, [&] { value = 1; }, 0);
  } catch (const std::runtime_error& error) {
    misuse = error.what();
  }
  EXPECT_EQ(misuse, "a kernel that has ended without its turn");
  EXPECT_EQ(value, 1);
}

// Of launches that may overlap one begins ahead of another; whoever waits for the stream waits for both.
TEST(EmulatorTest, ALaunchThatMayOverlapBeginsBeforeTheOneBeforeIt) {
  struct Values {
    int value = 0, early = -1, late = -1;
  } seen;
  void (*const before)(Values*) = [](Values* values) { values->value = 1; };
  void (*const behind)(Values*) = [](Values* values) {
    values->early = values->value;
    TakeTurn();
    values->late = values->value;
  };
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  cudaLaunchConfig_t config = {};
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (const bool overlaps : {false, true}) {
    attribute.val.programmaticStreamSerializationAllowed = overlaps ? 1 : 0;
    seen = {};
    EXPECT_EQ(cudaLaunchKernelEx(&config, before, &seen), cudaSuccess);
    EXPECT_EQ(seen.value, overlaps ? 0 : 1);
    EXPECT_EQ(cudaLaunchKernelEx(&config, behind, &seen), cudaSuccess);
    EXPECT_EQ(seen.early, overlaps ? 0 : 1);
    EXPECT_EQ(seen.late, 1);
    seen = {};
    EXPECT_EQ(cudaLaunchKernelEx(&config, before, &seen), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(seen.value, 1);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// The last that launches: the emulated GPU is lost with it, as a GPU is.
TEST(EmulatorTest, WhoLaunchesAMisuseIsToldOfIt) {
  void (*const kernel)() = [] { emulator::Misuse("something that no GPU does"); };
  cudaLaunchConfig_t config = {};
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaErrorLaunchFailure);
  EXPECT_STREQ(cudaGetErrorString(cudaGetLastError()),
               "a misuse of the emulated GPU: thread 0 of CTA 0: something that no GPU does");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace quire::cuda
