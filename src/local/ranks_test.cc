// The bundled model on several ranks, and in several groups: its answers are those of one rank, whatever the
// engine does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/collective.h"
#include "engine/engine.h"
#include "local/local_model.h"
#include "local/model_folder.h"
#include "local/ranks.h"
#include "model/config.h"
#include "runner/adaptive_drafter.h"
#include "testing/error_message.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

LocalOptions OptionsOfRanks(int32_t tp_size, int32_t ep_size) {
  LocalOptions options;
  options.device = DeviceChoice::kCpu;
  options.context = TokenCount(96);
  options.page_size = PageSize(8);
  options.max_seqs = 4;
  options.max_step_tokens = TokenCount(32);
  options.num_threads = 2;
  options.tp_size = tp_size;
  options.ep_size = ep_size;
  return options;
}

// Tokens and the bits of their log-probabilities, by request and sample.
using Said = std::map<std::pair<size_t, int32_t>, std::vector<std::pair<int32_t, uint32_t>>>;

// Several questions at once: one with two answers, one whose prompt begins as another's.
Said AskAll(LocalModel& model) {
  const auto prompt = [&](const std::string& text) { return EncodePrompt(*model.text, text); };
  const std::string first = "Tom has 12 apples and gives 5 of them to Ann. How many does he keep?";
  std::vector<Request> requests;
  for (const std::string& text :
       {first, first + " Ann eats two.", std::string("A train has 9 cars."),
        std::string("What is 17 + 25?")}) {
    requests.push_back({.prompt = prompt(text), .sampling = {.temperature = 0}, .max_tokens = 24});
  }
  requests[3].num_samples = 2;
  requests[3].sampling = {.temperature = 0.8f, .seed = 7};
  std::mutex mutex;
  std::condition_variable ended;
  size_t num_ended = 0;
  Said said;
  const auto submit = [&](size_t i) {
    const auto listen = [&, i](const TokenEvent& event) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(event.error, "");
      if (event.token != kNoToken) {
        said[{i, event.sample}].emplace_back(event.token, std::bit_cast<uint32_t>(event.logprob));
      }
      if (event.last_of_request) ++num_ended;
      ended.notify_all();
    };
    ASSERT_TRUE(model.engine->Submit(requests[i], listen).has_value());
  };
  const auto wait_for = [&](size_t count) {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return num_ended == count; });
  };
  submit(0);  // alone, so that the next one finds its prefix in the cache
  wait_for(1);
  for (size_t i = 1; i < requests.size(); ++i) submit(i);
  wait_for(requests.size());
  EXPECT_EQ(said.size(), 5u);
  EXPECT_GT(model.engine->counters().cached_tokens, 0);
  return said;
}

TEST(LocalRanksModel, AnswersAreThoseOfOneRankWithPrefixHitsPreemptionAndSpeculation) {
  LocalOptions tight = OptionsOfRanks(1, 1);
  tight.pool_tokens = TokenCount(112);
  LocalModel one = OpenLocalModel(QUIRE_BUNDLED_MODEL, tight);
  const Said expected = AskAll(one);
  EXPECT_GT(one.engine->counters().preemptions, 0);
  for (const auto& [tp_size, ep_size] :
       testing::SampledOf<std::pair<int, int>>({{2, 1}, {4, 4}, {8, 1}, {8, 8}})) {
    LocalOptions options = OptionsOfRanks(tp_size, ep_size);
    options.pool_tokens = tight.pool_tokens;
    LocalModel model = OpenLocalModel(QUIRE_BUNDLED_MODEL, options);
    EXPECT_EQ(AskAll(model), expected) << tp_size << " ranks";
    EXPECT_GT(model.engine->counters().preemptions, 0);
  }
  for (const TreeShape& shape : testing::SampledOf<TreeShape>(
           {{.steps = 2, .branches = 2, .nodes = 4}, {.steps = 2, .nodes = 3}})) {
    LocalOptions options = OptionsOfRanks(4, 1);
    options.speculation = {.algorithm = Speculation::Algorithm::kEagle, .shape = shape};
    LocalModel model = OpenLocalModel(QUIRE_BUNDLED_MODEL, options);
    EXPECT_EQ(AskAll(model), expected) << "speculating, " << shape.branches << " branches";
    EXPECT_GT(model.engine->counters().accepted_tokens, 0);
  }
}

// So many groups, each with the room of one rank alone.
LocalOptions OptionsOfGroups(int32_t dp_size) {
  LocalOptions options = OptionsOfRanks(1, 1);
  options.dp_size = dp_size;
  options.max_seqs *= dp_size;
  options.max_step_tokens = *options.max_step_tokens * dp_size;
  options.pool_tokens = TokenCount(112 * dp_size);
  return options;
}

// Twenty questions at once, many of which begin alike and one of which is cancelled.
Said AskTwenty(LocalModel& model) {
  const auto [begin, end] = std::pair("Tom has 12 apples and gives 5 of them to ", " How many?");
  std::mutex mutex;
  std::condition_variable ended;
  size_t num_ended = 0;
  Said said;
  for (size_t i = 0; i < 21; ++i) {
    const std::string text = i % 4 == 0 ? fmt::format("What is {} + {}?", i, 3 * i)
                                        : fmt::format("{}{} friends.{}", begin, i % 7, end);
    const Request request{.prompt = EncodePrompt(*model.text, text),
                          .sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.8f, .seed = i},
                          .max_tokens = i % 5 == 0 ? 48 : 24};
    const auto listen = [&, i](const TokenEvent& event) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(event.error, "");
      if (event.token != kNoToken && i < 20) {
        said[{i, event.sample}].emplace_back(event.token, std::bit_cast<uint32_t>(event.logprob));
      }
      if (event.last_of_request) ++num_ended;
      ended.notify_all();
    };
    const std::optional<RequestId> id = model.engine->Submit(request, listen);
    if (i == 20) model.engine->Cancel(id.value());
  }
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return num_ended == 21; });
  EXPECT_EQ(said.size(), 20u);
  return said;
}

TEST(LocalGroupsModel, AnswersAreThoseOfOneRankWithPrefixHitsPreemptionAndCancellation) {
  LocalModel one = OpenLocalModel(QUIRE_BUNDLED_MODEL, OptionsOfGroups(1));
  const Said few = AskAll(one), many = AskTwenty(one);
  EXPECT_GT(one.engine->counters().preemptions, 0);
  for (const int32_t dp_size : testing::SampledOf<int32_t>({2, 4})) {
    LocalModel model = OpenLocalModel(QUIRE_BUNDLED_MODEL, OptionsOfGroups(dp_size));
    ASSERT_EQ(model.runners.size(), static_cast<size_t>(dp_size));
    EXPECT_EQ(AskAll(model), few) << dp_size << " groups";
    EXPECT_EQ(AskTwenty(model), many) << dp_size << " groups";
    const SchedulerCounters counters = model.engine->counters();
    EXPECT_GT(counters.preemptions, 0) << dp_size << " groups";
    EXPECT_EQ(counters.pages_total, dp_size * 112 / 8);
    EXPECT_EQ(counters.running, 0);
  }
}

// Drafts of one group meet none, or others, of the rest; `auto` measures first, and then each group chooses.
// A sampled build takes the first two ways to draft: nothing else has trees, or `auto`, in groups there.
TEST(LocalGroupsModel, AnswersOfGroupsThatSpeculateAreThoseOfOneRankThatDoesNot) {
  LocalModel one = OpenLocalModel(QUIRE_BUNDLED_MODEL, OptionsOfGroups(1));
  const Said few = AskAll(one), many = AskTwenty(one);
  using Algorithm = Speculation::Algorithm;
  const std::vector<TreeShape> shapes = {{.steps = 1, .nodes = 2}, {.steps = 3, .nodes = 4}};
  for (const Speculation& how : testing::SampledOf<Speculation>(
           {{.algorithm = Algorithm::kEagle, .shape = {.steps = 2, .branches = 2, .nodes = 4}},
            {.algorithm = Algorithm::kEagle, .choices = shapes, .shape = ShapeAround(shapes)},
            {.algorithm = Algorithm::kEagle, .shape = {.steps = 3, .nodes = 4}},
            {.algorithm = Algorithm::kNgram, .shape = {.steps = 4, .nodes = 5}}})) {
    for (const int32_t dp_size : testing::SampledOf<int32_t>({1, 2, 4})) {
      if (dp_size == 1 && !how.choices.empty()) continue;  // AdaptiveDrafter's own tests
      SCOPED_TRACE(fmt::format("{} groups, algorithm {}, {} branches, {} choices", dp_size,
                               static_cast<int>(how.algorithm), how.shape.branches,
                               how.choices.size()));
      LocalOptions options = OptionsOfGroups(dp_size);
      options.speculation = how;
      LocalModel model = OpenLocalModel(QUIRE_BUNDLED_MODEL, options);
      EXPECT_EQ(AskAll(model), few);
      EXPECT_EQ(AskTwenty(model), many);
      EXPECT_TRUE(model.engine->counters().accepted_tokens > 0 || !how.choices.empty());
    }
  }
}

TEST(LocalGroupsModel, SharesOutWhatIsOfAllTogetherAndRefusesTheRestByName) {
  LocalOptions options = OptionsOfGroups(4);
  options.memory_limit = ByteOffset(4000);
  options.num_threads = 9;
  const RunnerOptions each = MakeRunnerOptions(DeviceKind::kCpu, options);
  EXPECT_EQ(each.num_threads, 2);
  EXPECT_EQ(each.memory_limit, ByteOffset(1000));
  EXPECT_EQ(each.max_seqs, 4);
  EXPECT_EQ(each.max_step_tokens, TokenCount(32));
  EXPECT_EQ(each.pool_tokens, TokenCount(112));
  const auto refusal = [](const LocalOptions& refused) {
    return testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                 [&] { MakeRunnerOptions(DeviceKind::kCpu, refused); });
  };
  options.tp_size = 2;
  EXPECT_EQ(refusal(options),
            "dp size: expected 1 with a tp size or an ep size, since a group has one rank so far, "
            "got 4");
  options.tp_size = 1;
  options.speculation = {.algorithm = Speculation::Algorithm::kEagle3};
  EXPECT_EQ(refusal(options), "speculation: eagle3: expected one rank, got 4");
  options.dp_size = 0;
  EXPECT_EQ(refusal(options), "dp size: expected at least 1, got 0");
}

void ExpectProgressToTheEnd(LocalOptions options) {
  ByteOffset planned{0}, loaded{0};
  options.events = {.planned = [&](const MemoryPlan& plan) { planned = plan.weights; },
                    .loaded =
                        [&](ByteOffset bytes) {
                          EXPECT_GE(bytes, loaded);
                          loaded = bytes;
                        }};
  OpenLocalModel(QUIRE_BUNDLED_MODEL, options);
  EXPECT_GT(loaded.raw(), planned.raw() * 99 / 100);  // the last norm is not counted
}

TEST(LocalGroupsModel, ProgressGrowsOverAllGroups) { ExpectProgressToTheEnd(OptionsOfGroups(2)); }

TEST(LocalRanksModel, SharesThreadsAndMemoryOut) {
  LocalOptions options = OptionsOfRanks(4, 1);
  options.memory_limit = ByteOffset(4000);
  options.num_threads = 9;
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).num_threads, 2);
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).memory_limit, ByteOffset(1000));
  options.num_threads = 1;
  EXPECT_EQ(MakeRunnerOptions(DeviceKind::kCpu, options).num_threads, 1);
  options.tp_size = 0;
  EXPECT_EQ(testing::ErrorMessage(ErrorCode::kInvalidArgument,
                                  [&] { MakeRunnerOptions(DeviceKind::kCpu, options); }),
            "tp size: expected at least 1, got 0");
}

// A process alone, of a model without a layer of its own that drafts.
TEST(LocalRanksModel, OneOfAGroupOfOneDraftsByAHead) {
  LocalOptions options = OptionsOfRanks(1, 1);
  options.speculation = {.algorithm = Speculation::Algorithm::kEagle3,
                         .shape = {.steps = 2, .nodes = 3},
                         .draft_model = std::string(QUIRE_BUNDLED_MODEL) + "-eagle3"};
  OpenedModel opened = OpenModel(QUIRE_BUNDLED_MODEL, LoadFormat::kAuto);
  auto config = std::make_unique<ModelConfig>(*opened.config);
  config->num_draft_layers = 0;
  opened.config = std::move(config);
  OpenDraftModel(options.speculation, opened);
  const std::shared_ptr<Collective> alone = std::move(MakeLocalRanks(1)[0]);
  const auto runner =
      LoadRunner(opened, DeviceKind::kCpu, MakeRunnerOptions(DeviceKind::kCpu, options), {}, alone);
  EXPECT_NE(runner->draft_runner(), nullptr);
}

TEST(RanksOnGpus, OneThatHasNoneOrAnothersIsFound) {
  const auto gpu = [](uint8_t id) { return RankGpu{.id = {std::byte{id}}, .is_usable = true}; };
  EXPECT_EQ(FirstWithoutGpu(std::vector{gpu(1)}), std::nullopt);
  EXPECT_EQ(FirstWithoutGpu(std::vector{gpu(1), gpu(2), gpu(3)}), std::nullopt);
  EXPECT_EQ(FirstWithoutGpu(std::vector{gpu(1), gpu(2), gpu(1), gpu(2)}), 2);
  EXPECT_EQ(FirstWithoutGpu(std::vector{gpu(1), RankGpu{}, gpu(1)}), 1);
  EXPECT_EQ(FirstWithoutGpu(std::vector{RankGpu{}, RankGpu{}}), 0);
}

TEST(LocalRanksModel, ProgressGrowsOverAllRanks) { ExpectProgressToTheEnd(OptionsOfRanks(4, 1)); }

}  // namespace
}  // namespace quire
