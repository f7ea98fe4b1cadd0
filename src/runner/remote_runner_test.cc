// A runner that another rank serves: what it says is what it would say here.
#include "runner/remote_runner.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/collective.h"
#include "runner/rank_cases.h"
#include "testing/error_message.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

// `runner` at rank 1, whose thread serves it, and at rank 0.
struct Served {
  Served(Runner& runner, const MemoryPlan& plan)
      : Served(runner, plan, Shared(MakeLocalRanks(2))) {}
  Served(Runner& runner, const MemoryPlan& plan, std::vector<std::shared_ptr<Collective>> given)
      : ranks(std::move(given)),
        serving([this, &runner] { ServeRunner(runner, *ranks[1]); }),
        remote(std::make_unique<RemoteRunner>(ranks[0], 1, runner.limits(), plan)) {}
  ~Served() {
    remote.reset();
    serving.join();
  }

  std::vector<std::shared_ptr<Collective>> ranks;
  std::thread serving;
  std::unique_ptr<RemoteRunner> remote;
};

// Says every value of a result, with its bits.
std::string ToText(const StepResult& result) {
  std::string text;
  const auto add = [&](const TokenLogprob& token) {
    text += fmt::format(" {}:{:x}", token.token, std::bit_cast<uint32_t>(token.logprob));
  };
  for (const StepSequenceResult& seq : result.sequences) {
    text += fmt::format("\nfault {}, drafted {}", static_cast<int>(seq.fault), seq.num_drafted);
    for (const StepAnswer& answer : seq.answers) {
      text += "\n  answer";
      for (const StepToken& token : answer.tokens) {
        add(token.chosen);
        text += " of";
        for (const TokenLogprob& top : token.top) add(top);
      }
    }
  }
  return text;
}

// Sequences with all that a batch can have: chunks, scores, samples, penalties, biases, trees, page copies, and
// a mask that is written while the step runs.
std::string RunAll(Runner& runner) {
  std::string text;
  const std::vector<int32_t> prompt = testing::RandomTokens(9, runner.limits().vocab_size, 1);
  const std::vector<int32_t> tree = {3, 4, 5}, parents = {-1, 0, 0};
  const std::vector<LogitBias> biases = {{.token = 7, .bias = 2.5f}, {.token = 9, .bias = -1}};
  const std::vector<PageId> first = {PageId(1), PageId(2), PageId(3), PageId(4)};
  const std::vector<PageId> second = {PageId(5), PageId(6), PageId(7), PageId(8)};
  const std::vector<PageId> copied = {PageId(9), PageId(10), PageId(11), PageId(12)};
  const std::span<const int32_t> all = prompt;
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(runner.limits().vocab_size)));
  const auto step = [&](const StepBatch& batch) {
    std::ranges::fill(mask, 0u);
    runner.Submit(batch);
    mask[0] = 0xf0;  // tokens 4 to 7
    text += ToText(runner.Collect());
  };
  std::vector<StepSequence> seqs = {
      {.id = 1, .tokens = all.first(8), .pages = first, .want = Want::kNothing},
      {.id = 2,
       .tokens = all.first(4),
       .pages = second,
       .want = Want::kScores,
       .sampling = {.top_logprobs = 3},
       .next_token = 5}};
  step({.sequences = seqs});
  seqs = {{.id = 1,
           .tokens = all.subspan(8),
           .position = TokenCount(8),
           .pages = first,
           .want = Want::kNextToken,
           .sampling = {.temperature = 0.7f,
                        .repetition_penalty = 1.3f,
                        .frequency_penalty = 0.5f,
                        .logit_bias = biases,
                        .seed = 11,
                        .top_logprobs = 2},
           .num_samples = 2,
           .first_sample = 1,
           .prompt = all.first(6),
           .output = all.subspan(6)},
          {.id = 2,
           .tokens = tree,
           .position = TokenCount(4),
           .pages = second,
           .tree_parents = parents,
           .want = Want::kNextToken,
           .sampling = {.temperature = 0}}};
  step({.sequences = seqs});
  const StepPageCopy copy{.from = PageId(1), .to = PageId(9), .count = 4};
  const StepSlotMove move{.from = runner.limits().page_size.SlotOf(PageId(6), 2),
                          .to = runner.limits().page_size.SlotOf(PageId(6), 1)};
  seqs = {{.id = 3,
           .tokens = all.subspan(4, 3),
           .position = TokenCount(4),
           .pages = copied,
           .want = Want::kNextToken,
           .sampling = {.temperature = 0},
           .mask = mask}};
  step({.moves = {&move, 1}, .copies = {&copy, 1}, .sequences = seqs});
  return text;
}

RunnerOptions OptionsOfServed() {
  RunnerOptions options = OptionsOfRanks(1);
  options.tree_nodes = TokenCount(4);
  return options;
}

TEST(RemoteRunnerTest, SaysWhatTheRunnerWouldSayHere) {
  const auto here = testing::MakeRunner(kHfFixtures / "v3_groups", OptionsOfServed());
  const auto there = testing::MakeRunner(kHfFixtures / "v3_groups", OptionsOfServed());
  const std::string expected = RunAll(*here);
  EXPECT_NE(expected.find("answer"), std::string::npos);
  Served served(*there, there->memory_plan());
  EXPECT_EQ(RunAll(*served.remote), expected);
  EXPECT_EQ(served.remote->memory_plan().total(), here->memory_plan().total());
}

TEST(RemoteRunnerTest, ThrowsWhatTheRunnerHasThrown) {
  class ThrowingRunner final : public Runner {
   public:
    const RunnerLimits& limits() const override { return limits_; }
    void Submit(const StepBatch&) override { throw_next(); }
    const StepResult& Collect() override {
      throw_next();
      return result_;
    }
    std::function<void()> throw_next = [] {};

   private:
    const RunnerLimits limits_ = {};
    const StepResult result_ = {};
  } runner;
  Served served(runner, {});
  RemoteRunner& remote = *served.remote;
  runner.throw_next = [] { throw Error(ErrorCode::kCapacityExceeded, "too {}", "much"); };
  EXPECT_EQ(testing::ErrorMessage(ErrorCode::kCapacityExceeded, [&] { remote.Submit({}); }),
            "too much");
  runner.throw_next = [] { throw DeviceError(DeviceError::Lasts::kOnce, "once"); };
  EXPECT_THROW(
      {
        try {
          remote.Collect();
        } catch (const DeviceError& error) {
          EXPECT_FALSE(error.is_sticky());
          EXPECT_STREQ(error.what(), "once");
          throw;
        }
      },
      DeviceError);
  runner.throw_next = [] { throw std::bad_alloc(); };
  EXPECT_THROW(remote.Collect(), InternalError);
  runner.throw_next = [] { throw DeviceError(DeviceError::Lasts::kForever, "rank 1 of 2: gone"); };
  EXPECT_EQ(DeviceErrorOf([&] { remote.Collect(); }), "rank 1 of 2: gone");
  runner.throw_next = [] {};
  EXPECT_TRUE(remote.Step({}).sequences.empty());
}

TEST(RemoteRunnerTest, ARankThatFailsOrDoesNotAnswerEndsTheCallByItsName) {
  const auto ranks = Shared(MakeLocalRanks(2, std::chrono::milliseconds(50)));
  RemoteRunner remote(ranks[0], 1, {}, {});
  EXPECT_EQ(DeviceErrorOf([&] { remote.Submit({}); }), "rank 1 of 2: did not answer within 50 ms");
  EXPECT_EQ(DeviceErrorOf([&] { remote.Collect(); }), "rank 1 of 2: did not answer within 50 ms");
}

}  // namespace
}  // namespace quire
