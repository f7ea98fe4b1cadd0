// Speculation over a runner of the CPU or of a device.
#include "runner/speculative_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decode/ngram_drafter.h"
#include "runner/runner_cases.h"
#include "runner/test_backend.h"
#include "runner/test_models.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/faulty_weights.h"
#include "testing/sanitized_share.h"
#include "testing/scripted_drafter.h"
#include "testing/step_jobs.h"

namespace quire {
namespace {

using testing::DraftStyle;
using testing::ErrorMessage;
using testing::MakeBackendRunner;
using testing::RandomTokens;
using testing::ScriptedDrafter;
using testing::TokenReport;
using testing::Weights;

constexpr int64_t kNodes = 7;
const DraftRoom kRoom = DraftRoom::OfNodes(kNodes);
constexpr size_t kAnswer = 24;

RunnerOptions OptionsOf(int32_t page_size) {
  return {.page_size = PageSize(page_size),
          .context = TokenCount(128),
          .max_seqs = 3,
          .max_step_tokens = TokenCount(64),
          .num_threads = 2};
}

// A sequence on its way; what comes back for it in one step is added.
struct Speaker {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  std::vector<PageId> pages;
  uint64_t id = 0;
  std::vector<int32_t> text = {};  // prompt and output
  std::vector<TokenReport> reports = {};
  int64_t num_drafted = 0;
  RowFault fault = RowFault::kNone;

  bool done() const { return reports.size() >= kAnswer || fault != RowFault::kNone; }

  StepSequence Next(TokenCount lookahead) {
    const bool begins = text.empty();
    if (begins) text = prompt;
    const std::span<const int32_t> all = text;
    return {.id = id,
            .tokens = begins ? all : all.last(1),
            .position = TokenCount(begins ? 0 : text.size() - 1),
            .pages = pages,
            .lookahead = lookahead,
            .want = Want::kNextToken,
            .sampling = sampling,
            .first_sample = 2,
            .prompt = all.first(prompt.size()),
            .output = all.subspan(prompt.size())};
  }

  void Take(const StepSequenceResult& result) {
    fault = result.fault;
    num_drafted += result.num_drafted;
    if (fault != RowFault::kNone) return;
    for (const StepToken& token : result.answers[0].tokens) {
      text.push_back(token.chosen.token);
      reports.push_back({token.chosen, {token.top.begin(), token.top.end()}});
    }
  }
};

// Three answers in one batch, with pages from both ends of the pool: greedy, sampled, and sampled with
// penalties and a bias.
std::vector<Speaker> MakeSpeakers(const Runner& runner) {
  static const LogitBias bias[] = {{.token = 3, .bias = 2.0f}};
  const SamplingParams params[] = {{.temperature = 0, .top_logprobs = 3},
                                   {.temperature = 0.9f, .top_p = 0.9f, .seed = 5},
                                   {.temperature = 0.3f,
                                    .top_k = 30,
                                    .min_p = 0.01f,
                                    .repetition_penalty = 1.2f,
                                    .frequency_penalty = 0.4f,
                                    .presence_penalty = 0.3f,
                                    .logit_bias = bias,
                                    .seed = 7,
                                    .top_logprobs = 2}};
  const int64_t each = runner.limits().page_size.PagesFor(TokenCount(80)).raw();
  std::vector<Speaker> speakers;
  int64_t page = 1;
  for (size_t i = 0; i < std::size(params); ++i) {
    Speaker speaker{
        .prompt = RandomTokens(5 + 13 * static_cast<int64_t>(i), runner.limits().vocab_size, i),
        .sampling = params[i],
        .pages = {},
        .id = i + 1};
    for (int64_t k = 0; k < each; ++k) speaker.pages.emplace_back(page++);
    std::ranges::reverse(speaker.pages);
    speakers.push_back(std::move(speaker));
  }
  return speakers;
}

// All in one batch until they have spoken; speaker i looks ahead by what `lookahead` says of its turn.
template <class Lookahead>
int64_t Speak(Runner& runner, std::vector<Speaker>& speakers, Lookahead lookahead) {
  int64_t num_steps = 0;
  for (;; ++num_steps) {
    std::vector<StepSequence> batch;
    std::vector<Speaker*> spoken;
    for (Speaker& speaker : speakers) {
      if (speaker.done()) continue;
      batch.push_back(speaker.Next(lookahead(speaker)));
      spoken.push_back(&speaker);
    }
    if (batch.empty()) return num_steps;
    const StepResult& result = runner.Step({.sequences = batch});
    for (size_t i = 0; i < spoken.size(); ++i) {
      EXPECT_LE(result.sequences[i].num_drafted, batch[i].lookahead.raw());
      spoken[i]->Take(result.sequences[i]);
    }
  }
}

std::vector<Speaker> SpeakPlainly(Runner& runner) {
  std::vector<Speaker> speakers = MakeSpeakers(runner);
  Speak(runner, speakers, [](const Speaker&) { return TokenCount(0); });
  return speakers;
}

std::vector<std::vector<int32_t>> TextsOf(const std::vector<Speaker>& speakers) {
  std::vector<std::vector<int32_t>> texts;
  for (const Speaker& speaker : speakers) texts.push_back(speaker.text);
  return texts;
}

std::unique_ptr<Drafter> Scripted(std::vector<std::vector<int32_t>> texts, DraftStyle style,
                                  int64_t vocab_size) {
  return std::make_unique<ScriptedDrafter>(
      [texts = std::move(texts)](const StepSequence& seq) { return testing::NextOf(texts, seq); },
      style, vocab_size, 1);
}

// The first kAnswer tokens, bit for bit.
void ExpectSame(const std::vector<Speaker>& plain, const std::vector<Speaker>& spoken,
                const std::string& what) {
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto first = [](const Speaker& speaker) {
      testing::JobReport report;
      report.tokens = speaker.reports;
      report.tokens.resize(std::min(report.tokens.size(), kAnswer));
      return report;
    };
    EXPECT_EQ(testing::Difference(first(plain[i]), first(spoken[i])), "")
        << what << ", answer " << i;
    EXPECT_EQ(plain[i].fault, spoken[i].fault) << what << ", answer " << i;
  }
}

class SpeculativeRunnerTest : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  static std::unique_ptr<MeteredRunner> MakeTarget(int32_t page_size) {
    return MakeBackendRunner(GetParam(), TargetOptions(OptionsOf(page_size), kRoom),
                             Weights::kDummy);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, SpeculativeRunnerTest, ::testing::Values(kTrueGeometry, kSparse),
                         [](const auto& model) { return model.param.filename().string(); });

TEST_P(SpeculativeRunnerTest, AnswersAreThoseOfPlainSteps) {
  for (const int32_t page_size : testing::SampledOf<int32_t>({1, 16, 61, 64})) {
    const std::vector<Speaker> plain = SpeakPlainly(*MakeTarget(page_size));
    for (const DraftStyle style : testing::kDraftStyles) {
      auto target = MakeTarget(page_size);
      const int64_t vocab_size = target->limits().vocab_size;
      SpeculativeRunner runner(std::move(target), Scripted(TextsOf(plain), style, vocab_size),
                               kRoom);
      std::vector<Speaker> spoken = MakeSpeakers(runner);
      const int64_t num_steps = Speak(runner, spoken, [&](const Speaker& speaker) {
        return TokenCount((speaker.id + speaker.reports.size()) %
                          kNodes);  // as pages would have it
      });
      ExpectSame(plain, spoken,
                 "page size " + std::to_string(page_size) + ", style " +
                     std::to_string(static_cast<int>(style)));
      if (style == DraftStyle::kWrong) {
        EXPECT_EQ(num_steps, static_cast<int64_t>(kAnswer));
      } else {
        EXPECT_LT(num_steps, static_cast<int64_t>(kAnswer));
      }
      EXPECT_GT(spoken[0].num_drafted, 0);
    }
  }
}

// All but the first step, whose root is of the prompt, answer with all nodes and one token more.
TEST_P(SpeculativeRunnerTest, ARightDraftIsAcceptedWhole) {
  const std::vector<Speaker> plain = SpeakPlainly(*MakeTarget(16));
  auto target = MakeTarget(16);
  const int64_t vocab_size = target->limits().vocab_size;
  SpeculativeRunner runner(std::move(target),
                           Scripted(TextsOf(plain), DraftStyle::kRight, vocab_size), kRoom);
  EXPECT_EQ(runner.limits().lookahead, TokenCount(kNodes - 1));
  EXPECT_EQ(runner.limits().max_step_tokens, OptionsOf(16).max_step_tokens);
  EXPECT_EQ(runner.limits().max_samples, 3);
  std::vector<Speaker> spoken = MakeSpeakers(runner);
  const int64_t num_steps =
      Speak(runner, spoken, [](const Speaker&) { return TokenCount(kNodes - 1); });
  EXPECT_EQ(num_steps, 1 + (static_cast<int64_t>(kAnswer) - 1 + kNodes - 1) / kNodes);
}

constexpr int32_t kPoisonId = 7;
std::unique_ptr<MeteredRunner> MakeFaultyTarget() {
  const ModelConfig config = ReadModelConfig(kTrueGeometry);
  const std::unique_ptr<WeightSource> dummy = MakeDummyWeights(config);
  testing::FaultyWeights source(*dummy, kPoisonId);
  return MakeBackendRunner(config, source, TargetOptions(OptionsOf(16), kRoom));
}

// The second answer comes to the token whose embedding is NaN, and ends there, with the same tokens
// before it; drafts of it do no harm to the others.
TEST(SpeculativeNaNTest, LogitsThatAreNotFiniteEndAnAnswerWhereTheyWould) {
  static const LogitBias faulty[] = {{.token = kPoisonId, .bias = 8.0f}};
  const auto speakers_of = [](const Runner& runner) {
    std::vector<Speaker> speakers = MakeSpeakers(runner);
    for (Speaker& speaker : speakers)
      std::ranges::replace(speaker.prompt, kPoisonId, kPoisonId + 1);
    speakers[1].sampling.logit_bias = faulty;
    return speakers;
  };
  const auto plain_runner = MakeFaultyTarget();
  std::vector<Speaker> plain = speakers_of(*plain_runner);
  Speak(*plain_runner, plain, [](const Speaker&) { return TokenCount(0); });
  ASSERT_EQ(plain[1].fault, RowFault::kLogitsNotFinite);
  ASSERT_FALSE(plain[1].reports.empty());
  ASSERT_EQ(plain[0].fault, RowFault::kNone);
  std::vector<std::vector<int32_t>> bad_texts = TextsOf(plain);
  for (size_t i : {size_t{0}, size_t{2}}) {
    for (size_t k = plain[i].prompt.size() + 3; k < bad_texts[i].size(); k += 4) {
      bad_texts[i].resize(k);
      bad_texts[i].push_back(kPoisonId);
    }
  }
  for (const auto& texts : {TextsOf(plain), bad_texts}) {
    auto target = MakeFaultyTarget();
    const int64_t vocab_size = target->limits().vocab_size;
    SpeculativeRunner runner(std::move(target), Scripted(texts, DraftStyle::kRight, vocab_size),
                             kRoom);
    std::vector<Speaker> spoken = speakers_of(runner);
    Speak(runner, spoken, [](const Speaker&) { return TokenCount(kNodes - 1); });
    ExpectSame(plain, spoken, "NaN");
    EXPECT_EQ(plain[1].reports.size(), spoken[1].reports.size());
  }
}

TEST(SpeculativeRunnerStepTest, AStepAllocatesNothing) {
  auto target =
      MakeBackendRunner(kTrueGeometry, TargetOptions(OptionsOf(16), kRoom), Weights::kDummy);
  const TokenCount context = target->limits().context;
  SpeculativeRunner runner(std::move(target), std::make_unique<NgramDrafter>(3, context), kRoom);
  const std::vector<PageId> pages = FirstPages(5);
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 60; ++i) text.push_back(i % 5);
  const std::span<const int32_t> all = text;
  const StepSequence prefill{.id = 1, .tokens = all, .pages = pages};
  runner.Step({.sequences = {&prefill, 1}});
  for (size_t size = 30; size < 60; ++size) {
    const StepSequence seq{.id = 1,
                           .tokens = all.subspan(size - 1, 1),
                           .position = TokenCount(size - 1),
                           .pages = pages,
                           .lookahead = TokenCount(kNodes - 1),
                           .want = Want::kNextToken,
                           .sampling = {.temperature = 0.5f, .frequency_penalty = 0.1f},
                           .prompt = all.first(20),
                           .output = all.subspan(20, size - 20)};
    const int64_t before = testing::AllocationCount();
    const StepResult& result = runner.Step({.sequences = {&seq, 1}});
    EXPECT_EQ(testing::AllocationCount() - before, 0);
    EXPECT_EQ(result.sequences[0].num_drafted, kNodes - 1);
  }
}

TEST(SpeculativeRunnerStepTest, NodesOutOfRangeAreRefused) {
  for (const int64_t nodes : {1, 65}) {
    EXPECT_EQ(ErrorMessage([&] { TargetOptions(OptionsOf(16), DraftRoom::OfNodes(nodes)); }),
              "draft nodes: expected 2..64, got " + std::to_string(nodes));
  }
}

}  // namespace
}  // namespace quire
