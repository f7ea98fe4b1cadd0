#include "device/collective.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

using Ranks = std::vector<std::unique_ptr<Collective>>;

// fn(rank) of every rank, each on a thread; what each threw, or "".
std::vector<std::string> OnEveryRank(Ranks& ranks, const std::function<void(Collective&)>& fn) {
  std::vector<std::string> thrown(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        fn(*ranks[i]);
      } catch (const DeviceError& error) {
        EXPECT_TRUE(error.is_sticky());
        thrown[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

class LocalRanksOf : public ::testing::TestWithParam<int32_t> {
 protected:
  static std::vector<std::string> Nothing() {
    return std::vector<std::string>(static_cast<size_t>(GetParam()));
  }
};

TEST_P(LocalRanksOf, SharesAreOfWholeUnitsAndLeaveNothingOut) {
  const int32_t size = GetParam();
  for (const int64_t width : {int64_t{8}, int64_t{109}, int64_t{2048}, int64_t{2049}}) {
    for (const int64_t unit : {1, 32, 128}) {
      int64_t end = 0;
      for (int32_t rank = 0; rank < size; ++rank) {
        const Share share = ShareOf(width, unit, rank, size);
        EXPECT_EQ(share.first, end);
        EXPECT_TRUE(share.first % unit == 0 || share.count == 0);
        EXPECT_TRUE(share.count > 0 || width < unit * size);
        end = share.end();
      }
      EXPECT_EQ(end, width);
    }
  }
}

TEST_P(LocalRanksOf, AnExchangeGivesEveryRankTheRowsThatItNames) {
  const int32_t size = GetParam();
  Ranks ranks = MakeLocalRanks(size);
  constexpr int64_t kWidth = 5;
  // Rank r shows r + 1 rows, and every rank takes the last of each, the highest rank's first.
  std::vector<std::vector<float>> taken(ranks.size());
  const auto exchange = [&](Collective& self) {
    std::vector<float> rows(static_cast<size_t>((self.rank() + 1) * kWidth));
    std::vector<float>& own = taken[static_cast<size_t>(self.rank())];
    own.assign(static_cast<size_t>((size + 1) * kWidth), -1.0f);
    std::vector<RowPart> parts;
    std::vector<GivenRows> given;
    for (int32_t from = 0; from < size; ++from) {
      given.push_back({.to = from, .first = self.rank(), .count = 1});
      parts.push_back({.from = from, .first = from, .count = 1, .to = size - 1 - from});
      parts.push_back({.from = from, .first = 0, .count = 0, .to = 0});
    }
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] =
            static_cast<float>(repeat * 1000 + self.rank() * 100) + static_cast<float>(i % kWidth);
      }
      self.FetchRows(TensorView(rows.data(), {self.rank() + 1, kWidth}), given, parts,
                     TensorView(own.data(), {size + 1, kWidth}));
    }
  };
  EXPECT_EQ(OnEveryRank(ranks, exchange), Nothing());
  for (const std::vector<float>& each : taken) {
    for (int64_t row = 0; row <= size; ++row) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const int64_t expected = row < size ? 19000 + (size - 1 - row) * 100 + i : -1;
        ASSERT_EQ(each[static_cast<size_t>(row * kWidth + i)], static_cast<float>(expected));
      }
    }
  }
}

TEST_P(LocalRanksOf, MessagesComeInTheirOrderFromEachRankBesideWhatAllDo) {
  const int32_t size = GetParam();
  Ranks ranks = MakeLocalRanks(size);
  const auto talk = [&](Collective& self) {
    for (int number = 0; number < 20; ++number) {
      for (int32_t to = 0; to < size; ++to) {
        const std::vector<std::byte> message(static_cast<size_t>(number + 1),
                                             static_cast<std::byte>(self.rank()));
        if (to != self.rank()) self.Send(to, message);
      }
      if (number % 3 == 0) self.WaitForAll();
    }
    for (int number = 0; number < 20; ++number) {
      for (int32_t from = 0; from < size; ++from) {
        if (from == self.rank()) continue;
        std::vector<std::byte> message;
        self.Receive(from, message, Collective::Waits::kWithinStep);
        EXPECT_EQ(message, std::vector<std::byte>(static_cast<size_t>(number + 1),
                                                  static_cast<std::byte>(from)));
      }
    }
  };
  EXPECT_EQ(OnEveryRank(ranks, talk), Nothing());
}

TEST(LocalRanks, OneThatDoesNotAnswerIsNamedOnceNothingGoesOnEither) {
  Ranks ranks = MakeLocalRanks(2, std::chrono::milliseconds(50));
  std::vector<std::byte> message;
  EXPECT_THROW(
      {
        try {
          ranks[0]->Receive(1, message, Collective::Waits::kWithinStep);
        } catch (const DeviceError& error) {
          EXPECT_STREQ(error.what(), "rank 1 of 2: did not answer within 50 ms");
          throw;
        }
      },
      DeviceError);
}

// The patience is long enough for a busy machine: a step has to come within it.
TEST(LocalRanks, OneIsWaitedForAsLongAsStepsGoOn) {
  constexpr std::chrono::milliseconds kPatience(1000);
  Ranks ranks = MakeLocalRanks(2, kPatience);
  const auto end = std::chrono::steady_clock::now() + kPatience + kPatience / 4;
  std::vector<std::byte> message;
  const auto step = [&](Collective& self) { self.WaitForAll(); };
  std::thread steps([&] {
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(OnEveryRank(ranks, step), std::vector<std::string>(2));
    }
    ranks[1]->Send(0, std::vector<std::byte>(3));
  });
  EXPECT_NO_THROW(ranks[0]->Receive(1, message, Collective::Waits::kWithinStep));
  steps.join();
  EXPECT_EQ(message.size(), 3u);
}

TEST_P(LocalRanksOf, AGatherGivesEveryRankWhatEachWroteAndTouchesNothingBesides) {
  const int32_t size = GetParam();
  Ranks ranks = MakeLocalRanks(size);
  constexpr int64_t kRows = 3, kWidth = 21, kStride = 25;
  std::vector<std::vector<float>> memory(ranks.size(), std::vector<float>(kRows * kStride, -1.0f));
  std::vector<Share> shares;
  for (int32_t rank = 0; rank < size; ++rank) shares.push_back(ShareOf(kWidth, 2, rank, size));
  const auto gather = [&](Collective& self) {
    std::vector<float>& own = memory[static_cast<size_t>(self.rank())];
    const Share share = shares[static_cast<size_t>(self.rank())];
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = share.first; i < share.end(); ++i) {
          own[static_cast<size_t>(row * kStride + i)] =
              static_cast<float>(repeat * 1000 + row * 100 + i);
        }
      }
      self.AllGather(TensorView(own.data(), {kRows, kWidth}).WithRowStride(kStride), shares);
    }
  };
  EXPECT_EQ(OnEveryRank(ranks, gather), Nothing());
  for (const std::vector<float>& each : memory) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kStride; ++i) {
        const auto expected = static_cast<float>(i < kWidth ? 19000 + row * 100 + i : -1);
        ASSERT_EQ(each[static_cast<size_t>(row * kStride + i)], expected);
      }
    }
  }
}

TEST_P(LocalRanksOf, AReductionKeepsTheBitsOfTheOneRankThatHasThem) {
  Ranks ranks = MakeLocalRanks(GetParam());
  std::vector<std::vector<uint32_t>> memory(ranks.size(), std::vector<uint32_t>(37, 0));
  for (uint32_t i = 0; i < 37; ++i) memory[i % ranks.size()][i] = 0x80000000u + i;
  EXPECT_EQ(OnEveryRank(ranks,
                        [&](Collective& self) {
                          self.AllReduceOr(memory[static_cast<size_t>(self.rank())]);
                        }),
            Nothing());
  for (const std::vector<uint32_t>& each : memory) {
    for (uint32_t i = 0; i < 37; ++i) ASSERT_EQ(each[i], 0x80000000u + i);
  }
}

TEST_P(LocalRanksOf, AMessageOfRankZeroReachesAllInOrder) {
  Ranks ranks = MakeLocalRanks(GetParam());
  const auto talk = [](Collective& self) {
    std::vector<std::byte> message;
    for (size_t i = 0; i < 20; ++i) {
      if (self.rank() == 0) message.assign(i, static_cast<std::byte>(i));
      self.Broadcast(message);
      ASSERT_EQ(message, std::vector<std::byte>(i, static_cast<std::byte>(i)));
    }
  };
  EXPECT_EQ(OnEveryRank(ranks, talk), Nothing());
}

TEST_P(LocalRanksOf, OneThatFailsEndsAllWithOneMessage) {
  const int32_t size = GetParam();
  Ranks ranks = MakeLocalRanks(size);
  std::vector<uint32_t> words[8];
  const auto fail = [&](Collective& self) {
    if (self.rank() == size - 1) self.Fail("the file is truncated");
    std::vector<uint32_t>& own = words[static_cast<size_t>(self.rank())];
    for (int i = 0; i < 3; ++i) self.AllReduceOr(own);
  };
  const std::string said = fmt::format("rank {} of {}: the file is truncated", size - 1, size);
  EXPECT_EQ(OnEveryRank(ranks, fail), std::vector<std::string>(ranks.size(), said));
  // It stays so, and what fails later is not heard.
  ranks[0]->Fail("another reason");
  EXPECT_THROW(ranks[0]->ThrowIfFailed(), DeviceError);
  std::vector<std::byte> message;
  EXPECT_EQ(OnEveryRank(ranks, [&](Collective& self) { self.Broadcast(message); }),
            std::vector<std::string>(ranks.size(), said));
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalRanksOf, ::testing::Values(1, 2, 4, 8));

TEST(LocalRanks, OneThatDoesNotComeIsNamedWhenPatienceEnds) {
  Ranks ranks = MakeLocalRanks(2, std::chrono::milliseconds(20));
  std::vector<uint32_t> words;
  const auto come = [&](Collective& self) {
    if (self.rank() == 0) self.AllReduceOr(words);
  };
  const std::string said = "rank 1 of 2: did not come to a reduction within 20 ms";
  EXPECT_EQ(OnEveryRank(ranks, come), (std::vector<std::string>{said, ""}));
  EXPECT_THROW(ranks[1]->ThrowIfFailed(), DeviceError);
}

TEST(LocalRanks, CallsThatDoNotMatchEndAll) {
  Ranks ranks = MakeLocalRanks(2);
  std::vector<uint32_t> words[2];
  std::vector<std::byte> message;
  const auto call = [&](Collective& self) {
    self.rank() == 0 ? self.Broadcast(message) : self.AllReduceOr(words[1]);
  };
  const std::vector<std::string> thrown = OnEveryRank(ranks, call);
  EXPECT_EQ(thrown[0], thrown[1]);
  EXPECT_NE(thrown[0].find("while others came to"), std::string::npos) << thrown[0];
}

TEST(LocalRanks, WaitForAMessageLongerThanForEachOther) {
  Ranks ranks = MakeLocalRanks(2, std::chrono::milliseconds(300));
  const auto listen = [](Collective& self) {
    std::vector<std::byte> message(self.rank() == 0 ? 5 : 0);
    if (self.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    self.Broadcast(message);
    EXPECT_EQ(message.size(), 5u);
  };
  EXPECT_EQ(OnEveryRank(ranks, listen), std::vector<std::string>(2));
}

}  // namespace
}  // namespace quire
