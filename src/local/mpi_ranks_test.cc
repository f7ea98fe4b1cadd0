// Ranks that are processes. mpirun starts this program so many times, and every one of them runs the tests in
// the same order: rank 0 computes and compares, and the others follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/mpi_ranks.h"
#include "local/local_model.h"
#include "local/ranks.h"
#include "model/config.h"
#include "runner/draft_cases.h"
#include "runner/layer_drafter.h"
#include "runner/rank_cases.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

// MPI can be started once in a process.
class MpiWorldOfTests : public ::testing::Environment {
 public:
  static std::shared_ptr<ProcessRanks>& ranks() {
    static std::shared_ptr<ProcessRanks> ranks;
    return ranks;
  }
  void TearDown() override {
    if (ranks() != nullptr && ranks()->mpi().rank() != 0) {
      std::vector<std::byte> end;
      ranks()->mpi().Broadcast(end);
      EXPECT_TRUE(end.empty());
    }
    ranks().reset();
  }
};
[[maybe_unused]] const auto* const kWorldOfTests =
    ::testing::AddGlobalTestEnvironment(new MpiWorldOfTests);

class MpiRanksTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::shared_ptr<ProcessRanks>& ranks = MpiWorldOfTests::ranks();
    if (ranks == nullptr) ranks = std::make_shared<ProcessRanks>();
    ranks_ = ranks->collective();
  }

  // The two sequences of rank_cases.h, by all processes; rank 0 knows what came of them.
  std::vector<testing::JobReport> RunTwoOnAll(const std::filesystem::path& folder,
                                              int32_t ep_size) const {
    const OpenedModel model = OpenModel(folder, LoadFormat::kAuto);
    if (ranks_->rank() != 0) {
      EXPECT_TRUE(FollowRunner(model, {.memory_limit = RunnerOptions().memory_limit}, ranks_));
      return {};
    }
    return RunTwo(
        *LoadRunner(model, DeviceKind::kCpu, OptionsOfRanks(ranks_->size(), ep_size), {}, ranks_));
  }

  std::shared_ptr<Collective> ranks_;
};

TEST_P(MpiRanksTest, ChangeNoBitOfAFixture) {
  const std::filesystem::path folder = kHfFixtures / GetParam();
  const ModelConfig config = ReadModelConfig(folder);
  if (config.num_heads % ranks_->size() != 0) GTEST_SKIP() << config.num_heads << " heads";
  std::vector<testing::JobReport> alone;
  if (ranks_->rank() == 0) alone = RunTwo(*testing::MakeRunner(folder, OptionsOfRanks(1)));
  ExpectSame(RunTwoOnAll(folder, 1), alone, "ranks");
  if (config.moe.expert_width == 0 || config.moe.route.num_experts % ranks_->size() != 0) return;
  ExpectSame(RunTwoOnAll(folder, ranks_->size()), alone, "ranks with experts of their own");
}

// fn(one) of a group of this process, and of one of another, while the others do nothing or the same. Rank 0
// calls, and the others serve.
void OnGroups(const OpenedModel& model, const RunnerOptions& options,
              const Speculation& speculation, const std::shared_ptr<Collective>& ranks,
              const std::function<void(Runner&)>& fn) {
  if (ranks->rank() != 0) {
    EXPECT_TRUE(FollowRunner(model, {.memory_limit = RunnerOptions().memory_limit}, ranks));
    return;
  }
  const auto groups = LoadGroups(model, DeviceKind::kCpu, options, speculation, {}, {}, ranks);
  for (const size_t number : {size_t{0}, groups.size() - 1}) {
    for (const Others others : {Others::kNothing, Others::kTheSame}) {
      OneOfGroups one(PointersTo(groups), number, others);
      fn(one);
    }
  }
}

TEST_P(MpiRanksTest, ThatAreGroupsChangeNoBitOfAFixtureAndNoTextWhereTheySpeculate) {
  const std::filesystem::path folder = kHfFixtures / GetParam();
  const OpenedModel model = OpenModel(folder, LoadFormat::kAuto);
  const ModelConfig& config = *model.config;
  if (config.moe.expert_width == 0 || config.moe.route.num_experts % ranks_->size() != 0) {
    GTEST_SKIP() << config.moe.route.num_experts << " experts";
  }
  RunnerOptions options = OptionsOfRanks(1);
  const auto alone = RunTwo(*testing::MakeRunner(folder, options));
  options.dp_size = ranks_->size();
  for (const StepMode mode : {StepMode::kEager, StepMode::kGraph}) {
    options.mode = mode;
    OnGroups(model, options, {}, ranks_,
             [&](Runner& group) { ExpectSame(RunTwo(group), alone, "groups"); });
  }
  if (config.num_draft_layers == 0) return;
  options = DraftOptions(16);
  const auto texts = AnswerAll(*testing::MakeRunner(folder, options), kDraftOutput).texts;
  options.dp_size = ranks_->size();
  const Speculation speculation{.algorithm = Speculation::Algorithm::kEagle,
                                .shape = {.steps = 3, .branches = 2, .nodes = 5}};
  OnGroups(model, LayerTargetOptions(options, speculation.shape), speculation, ranks_,
           [&](Runner& group) { EXPECT_EQ(AnswerAll(group, kDraftOutput).texts, texts); });
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MpiRanksTest, ::testing::ValuesIn(FixtureNames()),
                         [](const auto& name) { return name.param; });

using MpiCallsTest = MpiRanksTest;

TEST_P(MpiCallsTest, GiveEveryRankWhatEachHas) {
  const int32_t size = ranks_->size(), rank = ranks_->rank();
  constexpr int64_t kRows = 3, kWidth = 21, kStride = 25;
  std::vector<Share> shares;
  for (int32_t i = 0; i < size; ++i) shares.push_back(ShareOf(kWidth, 2, i, size));
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<float> whole(kRows * kStride, -1.0f);
    const Share own = shares[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = own.first; i < own.end(); ++i) {
        whole[static_cast<size_t>(row * kStride + i)] =
            static_cast<float>(repeat * 1000 + row * 100 + i);
      }
    }
    ranks_->AllGather(TensorView(whole.data(), {kRows, kWidth}).WithRowStride(kStride), shares);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kStride; ++i) {
        const auto expected = static_cast<float>(i < kWidth ? repeat * 1000 + row * 100 + i : -1);
        ASSERT_EQ(whole[static_cast<size_t>(row * kStride + i)], expected);
      }
    }
    std::vector<uint32_t> words(37);
    for (uint32_t i = 0; i < 37; ++i) {
      if (std::cmp_equal(i % static_cast<uint32_t>(size), rank)) words[i] = 0x80000000u + i;
    }
    ranks_->AllReduceOr(words);
    for (uint32_t i = 0; i < 37; ++i) ASSERT_EQ(words[i], 0x80000000u + i);
    // Of less than the part that goes first, just as much, and more.
    for (const size_t bytes : {0u, 5u, 2048u, 2049u, 100000u}) {
      std::vector<std::byte> message;
      const auto value = static_cast<std::byte>(repeat);
      if (rank == 0) message.assign(bytes, value);
      ranks_->Broadcast(message);
      ASSERT_EQ(message, std::vector<std::byte>(bytes, value));
    }
    ranks_->WaitForAll();
  }
}

TEST_P(MpiCallsTest, KnowTheirNumberOnTheMachine) {
  const MpiRank& mpi = MpiWorldOfTests::ranks()->mpi();
  EXPECT_EQ(mpi.ranks_of_machine(), mpi.size());
  EXPECT_EQ(mpi.number_on_machine(), mpi.rank());
}

// Rank r shows r + 1 rows; each takes the last of every rank, the highest rank's first, and the first of rank 0
// twice; nothing besides.
TEST_P(MpiCallsTest, GiveEveryRankTheRowsThatItNames) {
  const int32_t size = ranks_->size(), rank = ranks_->rank();
  constexpr int64_t kWidth = 300;
  std::vector<float> rows(static_cast<size_t>((rank + 1) * kWidth));
  std::vector<float> taken(static_cast<size_t>((size + 3) * kWidth));
  std::vector<GivenRows> given;
  std::vector<RowPart> parts;
  for (int32_t other = 0; other < size; ++other) {
    given.push_back({.to = other, .first = rank, .count = 1});
    given.push_back({.to = other, .first = 0, .count = 0});
    parts.push_back({.from = other, .first = other, .count = 1, .to = size - 1 - other});
    parts.push_back({.from = other, .first = 0, .count = 0, .to = 0});
  }
  for (int64_t more = 0; more < 2; ++more) {
    for (int32_t to = 0; to < size && rank == 0; ++to) given.push_back({.to = to, .count = 1});
    parts.push_back({.from = 0, .count = 1, .to = size + more});
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto value = [&](int64_t of_rank, int64_t i) {
      return static_cast<float>(repeat * 10000 + of_rank * 1000 + i);
    };
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      rows[static_cast<size_t>(i)] = value(rank, i % kWidth);
    }
    taken.assign(taken.size(), -1.0f);
    ranks_->FetchRows(TensorView(rows.data(), {rank + 1, kWidth}), given, parts,
                      TensorView(taken.data(), {size + 3, kWidth}));
    for (int64_t row = 0; row < size + 3; ++row) {
      const int64_t from = std::max<int64_t>(size - 1 - row, 0);
      for (int64_t i = 0; i < kWidth; ++i) {
        ASSERT_EQ(taken[static_cast<size_t>(row * kWidth + i)],
                  row < size + 2 ? value(from, i) : -1.0f);
      }
    }
  }
}

// Short ones, and such as MPI sends only when they are asked for.
TEST_P(MpiCallsTest, BringMessagesInTheirOrderBesideWhatAllDo) {
  const int32_t size = ranks_->size(), rank = ranks_->rank();
  for (const size_t bytes : {1u, 4096u, 3000000u}) {
    for (int32_t to = 0; to < size; ++to) {
      if (to == rank) continue;
      for (size_t more = 0; more < 3; ++more) {
        ranks_->Send(to, std::vector<std::byte>(bytes + more, static_cast<std::byte>(rank)));
      }
    }
    ranks_->WaitForAll();
    for (int32_t from = 0; from < size; ++from) {
      for (size_t more = 0; more < 3 && from != rank; ++more) {
        std::vector<std::byte> message;
        ranks_->Receive(from, message, Collective::Waits::kWithinStep);
        ASSERT_EQ(message, std::vector<std::byte>(bytes + more, static_cast<std::byte>(from)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MpiCallsTest, ::testing::Values("calls"));

// By itself: it ends the group.
TEST(MpiFailure, OneThatDoesNotComeIsNamedWhenPatienceEnds) {
  const MpiModule module = FindMpi();
  ASSERT_NE(module.calls, nullptr) << module.problem;
  MpiRank ranks(*module.calls, std::chrono::milliseconds(300));
  const std::string said = fmt::format("rank {} of {}: did not come to a reduction within 300 ms",
                                       ranks.size() - 1, ranks.size());
  try {
    uint32_t word = 0;
    if (ranks.rank() + 1 < ranks.size()) ranks.AllReduceOr({&word, 1});
    while (true) {
      ranks.ThrowIfFailed();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const DeviceError& error) {
    EXPECT_TRUE(error.is_sticky());
    EXPECT_EQ(error.what(), said);
    if (ranks.rank() == 0) std::puts(error.what());
  }
  ranks.AwaitEndOfRankZero(std::chrono::seconds(2));
}

}  // namespace
}  // namespace quire
