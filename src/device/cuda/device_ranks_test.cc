// Collective calls of ranks that share a GPU, launched one by one and recorded.
#include "device/cuda/device_ranks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/narrow_float.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

// fn(rank) on a thread for each; what one throws is its line of the result.
std::vector<std::string> OnRanks(int32_t size, const std::function<void(DeviceRank&)>& fn) {
  const auto group = std::make_shared<LocalDeviceRank::Group>();
  std::vector<std::shared_ptr<Collective>> hosts;
  std::vector<std::unique_ptr<LocalDeviceRank>> ranks;
  for (std::unique_ptr<Collective>& own : MakeLocalRanks(size)) {
    std::shared_ptr<Collective> host = std::move(own);
    ranks.push_back(std::make_unique<LocalDeviceRank>(host, group));
    hosts.push_back(std::move(host));
  }
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        fn(*ranks[i]);
      } catch (const std::exception& error) {
        errors[i] = error.what();
        hosts[i]->Fail(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

class DeviceRanksOf : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  }
};

// [rows, width] of words, of which columns from `width` to `stride` are nobody's. Every rank adds to its own
// share before each gather, so a second launch of a graph has something new to bring.
TEST_P(DeviceRanksOf, AGatherGivesEveryRankWhatEachWroteHoweverOftenItRuns) {
  constexpr int64_t kRows = 37, kWidth = 101, kStride = 104;
  const int32_t size = GetParam();
  for (const bool is_recorded : {false, true}) {
    for (const int64_t unit : {1, 8}) {
      const auto errors = OnRanks(size, [&](DeviceRank& rank) {
        std::vector<Share> shares;
        for (int32_t r = 0; r < size; ++r) shares.push_back(ShareOf(kWidth, unit, r, size));
        std::vector<int32_t> own(kRows * kStride, -7);
        const Share& mine = shares[static_cast<size_t>(rank.rank())];
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t c = mine.first; c < mine.end(); ++c) {
            own[static_cast<size_t>(row * kStride + c)] = static_cast<int32_t>(row * 1000 + c);
          }
        }
        const DeviceVector<int32_t> memory(own);
        Stream stream;
        const TensorView whole = TensorView(reinterpret_cast<std::byte*>(memory.span().data()),
                                            DType::kF32, {kRows, kWidth}, MemorySide::kDevice)
                                     .WithRowStride(kStride);
        const auto work = [&] {
          AddToAll(memory.span(), 1, stream);
          rank.AllGather(whole, shares, stream);
        };
        work();
        std::optional<Graph> graph;
        if (is_recorded) graph = rank.Record(stream, work);
        for (int round = 0; round < 3; ++round) {
          if (is_recorded) {
            rank.Launch(graph, stream);
          } else {
            work();
          }
        }
        const std::vector<int32_t> found = memory.Values(stream);
        int64_t wrong = 0;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t c = 0; c < kStride; ++c) {
            const auto expected = c < kWidth ? static_cast<int32_t>(row * 1000 + c) + 4 : -7 + 4;
            wrong += found[static_cast<size_t>(row * kStride + c)] != expected;
          }
        }
        EXPECT_EQ(wrong, 0) << "rank " << rank.rank() << (is_recorded ? ", recorded" : "")
                            << ", unit " << unit;
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST_P(DeviceRanksOf, ColumnsOfHalfWordsAreGathered) {
  constexpr int64_t kRows = 5, kWidth = 67;
  const int32_t size = GetParam();
  const auto errors = OnRanks(size, [&](DeviceRank& rank) {
    std::vector<Share> shares;
    for (int32_t r = 0; r < size; ++r) shares.push_back(ShareOf(kWidth, 1, r, size));
    std::vector<uint16_t> own(kRows * kWidth, 0xffff);
    const Share& mine = shares[static_cast<size_t>(rank.rank())];
    for (int64_t i = 0; i < kRows * kWidth; ++i) {
      const int64_t c = i % kWidth;
      if (c >= mine.first && c < mine.end()) own[static_cast<size_t>(i)] = static_cast<uint16_t>(i);
    }
    const DeviceVector<uint16_t> memory(own);
    Stream stream;
    rank.AllGather(TensorView(reinterpret_cast<std::byte*>(memory.span().data()), DType::kBf16,
                              {kRows, kWidth}, MemorySide::kDevice),
                   shares, stream);
    const std::vector<uint16_t> found = memory.Values(stream);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i) << "rank " << rank.rank();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_P(DeviceRanksOf, AReductionKeepsTheBitsOfTheOneRankThatHasThem) {
  const int32_t size = GetParam();
  for (const bool is_recorded : {false, true}) {
    const auto errors = OnRanks(size, [&](DeviceRank& rank) {
      std::vector<uint32_t> own(100'000, 0);
      for (size_t i = 0; i < own.size(); ++i) {
        if (static_cast<int32_t>(i % static_cast<size_t>(size)) == rank.rank()) {
          own[i] = static_cast<uint32_t>(i) | 0x80000000u;
        }
      }
      const DeviceVector<uint32_t> memory(own);
      Stream stream;
      const auto work = [&] { rank.AllReduceOr(memory.span(), stream); };
      if (is_recorded) {
        const std::optional<Graph> graph = rank.Record(stream, work);
        rank.Launch(graph, stream);
        stream.Synchronize();
      } else {
        work();
      }
      const std::vector<uint32_t> found = memory.Values(stream);
      size_t wrong = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        wrong += found[i] != (static_cast<uint32_t>(i) | 0x80000000u);
      }
      EXPECT_EQ(wrong, 0u) << "rank " << rank.rank();
      // A graph of all ranks lies with rank 0, and is not to go while it runs.
      rank.AllReduceOr(memory.span(), stream);
      stream.Synchronize();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceRanksOf, ::testing::Values(1, 2, 4, 8));

}  // namespace
}  // namespace quire::cuda
