#include "local/local_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/group_threads.h"
#include "base/maths.h"
#include "decode/drafter.h"
#include "decode/ngram_drafter.h"
#include "local/ranks.h"
#include "runner/adaptive_drafter.h"
#include "runner/remote_runner.h"
#include "runner/shape_costs.h"
#include "runner/speculative_runner.h"

namespace quire {
namespace {

ByteOffset LimitFor(DeviceKind device, const LocalOptions& options) {
  const double part = options.memory_fraction;
  Require(part > 0 && part <= 1, "memory_fraction: expected above 0 and up to 1, got {}", part);
  const auto memory = static_cast<double>(MemoryOf(device).raw());
  return std::min(options.memory_limit, ByteOffset(static_cast<int64_t>(part * memory)));
}

// Ranks that share what MemoryOf says. Those that are processes have a GPU each.
int32_t RanksOfMemory(DeviceKind device, const LocalOptions& options, int32_t num_ranks) {
  if (options.ranks_of_machine == 0) return RanksOfDevice(device, num_ranks);
  return device == DeviceKind::kCpu ? options.ranks_of_machine : 1;
}

// A folder that is a config alone, as bench/models has them, can be served with made-up weights.
TextModel OpenText(const OpenedModel& model, const LoadEvents& events) {
  if (model.format != LoadFormat::kDummy || HasTokenizer(model.folder)) {
    return OpenTextModel(model.folder);
  }
  if (events.warning) {
    events.warning("tokens are made up, as the weights are: " + model.folder.string() +
                   " has no tokenizer");
  }
  return MakeUpTextModel(model.config->vocab_size);
}

// Published folders are right; one that is not is better known before its first strange answer.
void WarnOfVocabulary(const Tokenizer& tokenizer, const ModelConfig& config,
                      const LoadEvents& events) {
  if (tokenizer.vocab_size() <= config.vocab_size || !events.warning) return;
  events.warning(fmt::format(
      "the tokenizer has {} tokens and the model {}: prompts with the others are refused",
      tokenizer.vocab_size(), config.vocab_size));
}

void WarnOfTopK(const ModelConfig& config, const RunnerOptions& options, const LoadEvents& events) {
  if (options.index_top_k == 0 || !events.warning) return;
  events.warning(fmt::format("queries attend to {} keys, not to the {} the model was made for",
                             options.index_top_k, config.indexer->top_k));
}

void WarnOfSharing(DeviceKind device, const RunnerOptions& options, const LoadEvents& events) {
  if (device != DeviceKind::kCuda || !events.warning || options.num_ranks() == 1 ||
      RanksOfDevice(device, options.num_ranks()) == 1) {
    return;
  }
  events.warning(fmt::format(
      "{} ranks share one GPU, since there are not as many: that is good for tests alone",
      options.num_ranks()));
}

RunnerOptions WithRoomForDrafts(const Speculation& speculation, const RunnerOptions& options) {
  if (!speculation.is_on()) return options;
  Require(speculation.algorithm != Speculation::Algorithm::kEagle3 || options.num_ranks() == 1,
          "speculation: eagle3: expected one rank, got {}", options.num_ranks());
  Validate(speculation.shape);
  const DraftRoom room = speculation.shape.Room();
  Require(options.context == TokenCount(0) || options.context > TokenCount(room.slots),
          "speculation: context length: expected more than the {} tokens of a draft, got {}",
          room.slots, options.context);
  if (speculation.algorithm != Speculation::Algorithm::kNgram) {
    return LayerTargetOptions(options, speculation.shape);
  }
  Require(speculation.shape.branches == 1, "speculation: branches: expected 1 of ngram, got {}",
          speculation.shape.branches);
  return TargetOptions(options, room);
}

std::unique_ptr<LayerDrafter> MakeLayerDrafter(MeteredRunner& target,
                                               const Speculation& speculation, Faults faults) {
  QUIRE_CHECK(target.draft_runner() != nullptr, "the target has no draft layer that runs");
  return std::make_unique<LayerDrafter>(*target.draft_runner(), target.limits(), speculation.shape,
                                        faults);
}

std::unique_ptr<Drafter> MakeDrafter(MeteredRunner& target, const Speculation& speculation,
                                     Faults faults) {
  if (speculation.algorithm == Speculation::Algorithm::kNgram) {
    const RunnerLimits& limits = target.limits();
    return std::make_unique<NgramDrafter>(limits.max_seqs, limits.context);
  }
  return MakeLayerDrafter(target, speculation, faults);
}

std::unique_ptr<AdaptiveDrafter> MakeAdaptiveDrafter(MeteredRunner& target,
                                                     const Speculation& speculation,
                                                     Faults faults) {
  const int32_t max_seqs = target.limits().max_seqs;
  if (speculation.algorithm == Speculation::Algorithm::kNgram) {
    return std::make_unique<AdaptiveDrafter>(MakeDrafter(target, speculation, faults), nullptr,
                                             speculation.choices, max_seqs);
  }
  auto layer = MakeLayerDrafter(target, speculation, faults);
  const auto use_shape = [&layer = *layer](const TreeShape& shape) { layer.UseShape(shape); };
  return std::make_unique<AdaptiveDrafter>(std::move(layer), use_shape, speculation.choices,
                                           max_seqs);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rank 0's, which all ranks look at together: groups that go by it measure the same, and stop at the same step.
double NowOfAll(Collective& ranks) {
  double now = Now();
  std::vector<std::byte> message(sizeof(now));
  std::memcpy(message.data(), &now, sizeof(now));
  ranks.Broadcast(message);
  std::memcpy(&now, message.data(), sizeof(now));
  return now;
}

// `target`, drafting in whichever shape pays.
std::unique_ptr<MeteredRunner> SpeculateByCost(std::unique_ptr<MeteredRunner> target,
                                               const Speculation& speculation, Faults faults,
                                               const LoadEvents& events, Collective* groups) {
  auto chosen = MakeAdaptiveDrafter(*target, speculation, faults);
  AdaptiveDrafter& drafter = *chosen;
  auto runner = std::make_unique<SpeculativeRunner>(std::move(target), std::move(chosen),
                                                    speculation.shape.Room());
  const auto seconds = [=] { return groups == nullptr ? Now() : NowOfAll(*groups); };
  ShapeCosts costs = MeasureShapeCosts(*runner, drafter, {.seconds = seconds});
  if (events.measured) events.measured(ToTable(drafter.shapes(), costs));
  drafter.ChooseBy(std::move(costs));
  return runner;
}

// What is not built yet is said by name.
void CheckGroups(const LocalOptions& options) {
  Require(options.dp_size >= 1, "dp size: expected at least 1, got {}", options.dp_size);
  if (options.dp_size == 1) return;
  Require(
      options.tp_size == 1 && options.ep_size == 1,
      "dp size: expected 1 with a tp size or an ep size, since a group has one rank so far, got {}",
      options.dp_size);
}

// A group's part of what is of all together.
int64_t PartOf(int64_t all, const LocalOptions& options) {
  return CeilDiv(all, int64_t{options.dp_size});
}

RunnerOptions WithHead(RunnerOptions options, const OpenedModel& model) {
  options.head = model.head ? &*model.head : nullptr;
  return options;
}

std::unique_ptr<MeteredRunner> LoadHere(const OpenedModel& model, DeviceKind device,
                                        const RunnerOptions& given, const LoadEvents& events,
                                        const std::shared_ptr<Collective>& ranks = nullptr) {
  const RunnerOptions options = WithHead(given, model);
  const MemoryPlan plan = PlanMemory(device, *model.config, *model.weights, options);
  WarnOfTopK(*model.config, options, events);
  if (ranks == nullptr) WarnOfSharing(device, options, events);
  if (events.planned) events.planned(plan);
  auto runner =
      MakeRunner(device, *model.config, *model.weights, options, plan, events.loaded, ranks);
  if (events.ready) events.ready();
  return runner;
}

// Each of the groups on a thread of its own, since they take part in each other's steps.
void SpeculateTogether(const Speculation& speculation, Faults faults, const LoadEvents& events,
                       std::span<const std::shared_ptr<Collective>> ranks,
                       std::vector<std::unique_ptr<MeteredRunner>>& runners) {
  std::vector<std::exception_ptr> thrown(runners.size());
  GroupThreads(runners.size()).Run([&](size_t group) {
    try {
      runners[group] = Speculate(std::move(runners[group]), speculation, faults,
                                 group == 0 ? events : LoadEvents(), ranks[group].get());
    } catch (const std::exception& error) {
      thrown[group] = std::current_exception();
      ranks[group]->Fail(error.what());  // the others may wait for it
    }
  });
  for (const std::exception_ptr& each : thrown) {
    if (each) std::rethrow_exception(each);
  }
}

}  // namespace

RunnerOptions MakeRunnerOptions(DeviceKind device, const LocalOptions& options) {
  Require(options.tp_size >= 1, "tp size: expected at least 1, got {}", options.tp_size);
  CheckGroups(options);
  // What checks look for shows in eager steps, one launch at a time.
  const StepMode mode = options.checks == StepChecks::kOff ? StepModeFor(device) : StepMode::kEager;
  const TokenCount step_tokens =
      StepTokensFor(device, Max(RunnerOptions().max_step_tokens, TokenCount(options.max_seqs)));
  const int32_t num_ranks = options.tp_size * options.dp_size;
  const int32_t on_cpus = options.ranks_of_cpus > 0 ? options.ranks_of_cpus : num_ranks;
  const RunnerOptions plain{
      .page_size = options.page_size,
      .context = options.context,
      .max_seqs = static_cast<int32_t>(PartOf(options.max_seqs, options)),
      .max_step_tokens =
          TokenCount(PartOf(options.max_step_tokens.value_or(step_tokens).raw(), options)),
      .pool_tokens = TokenCount(PartOf(options.pool_tokens.raw(), options)),
      .pool_room = device == DeviceKind::kCpu ? PoolRoom::kModest : PoolRoom::kEverySequence,
      .kv_format = options.kv_format,
      .index_type = options.index_type,
      .index_layout = options.index_layout,
      .index_top_k = options.index_top_k,
      .tp_size = options.tp_size,
      .ep_size = options.ep_size,
      .dp_size = options.dp_size,
      .mode = options.mode.value_or(mode),
      .checks = options.checks,
      .deterministic = options.deterministic,
      .num_threads = std::max(1, options.num_threads / on_cpus),
      .memory_limit =
          ByteOffset(LimitFor(device, options).raw() / RanksOfMemory(device, options, num_ranks)),
      .faults = options.faults};
  return WithRoomForDrafts(options.speculation, plain);
}

void OpenDraftModel(const Speculation& speculation, OpenedModel& model) {
  if (speculation.algorithm != Speculation::Algorithm::kEagle3) return;
  Require(!speculation.draft_model.empty(),
          "speculation: eagle3: expected the folder of a draft model, got none");
  model.head = OpenEagleHead(speculation.draft_model, *model.config);
}

std::unique_ptr<MeteredRunner> LoadRunner(const OpenedModel& model, DeviceKind device,
                                          const RunnerOptions& options, const LoadEvents& events,
                                          std::shared_ptr<Collective> ranks,
                                          const Speculation& speculation) {
  if (ranks == nullptr) return LoadHere(model, device, options, events);
  try {
    TellOptions(options, speculation, *ranks);
    const MemoryPlan plan =
        PlanMemory(device, *model.config, *model.weights, WithHead(options, model));
    const RunnerOptions common = WithCommonPool(options, *model.config, plan, *ranks);
    LoadEvents watched = events;
    watched.loaded = [&](ByteOffset loaded) {
      ranks->ThrowIfFailed();
      if (events.loaded) events.loaded(loaded);
    };
    return LoadHere(model, device, common, watched, ranks);
  } catch (const std::exception& error) {
    ranks->Fail(error.what());
    throw;
  }
}

std::unique_ptr<MeteredRunner> Speculate(std::unique_ptr<MeteredRunner> target,
                                         const Speculation& speculation, Faults faults,
                                         const LoadEvents& events, Collective* groups) {
  if (!speculation.choices.empty()) {
    return SpeculateByCost(std::move(target), speculation, faults, events, groups);
  }
  std::unique_ptr<Drafter> drafter = MakeDrafter(*target, speculation, faults);
  return std::make_unique<SpeculativeRunner>(std::move(target), std::move(drafter),
                                             speculation.shape.Room());
}

namespace {

std::vector<std::unique_ptr<MeteredRunner>> LoadGroupsHere(
    const OpenedModel& model, DeviceKind device, const RunnerOptions& options,
    const Speculation& speculation, Faults faults, const LoadEvents& events) {
  const MemoryPlan plan = PlanMemory(device, *model.config, *model.weights, options);
  WarnOfTopK(*model.config, options, events);
  WarnOfSharing(device, options, events);
  if (events.planned) events.planned(plan);
  auto made = MakeLocalRanks(options.dp_size);
  const std::vector<std::shared_ptr<Collective>> ranks(std::make_move_iterator(made.begin()),
                                                       std::make_move_iterator(made.end()));
  auto runners =
      MakeGroups(device, *model.config, *model.weights, options, plan, events.loaded, ranks);
  if (events.ready) events.ready();
  if (speculation.is_on()) SpeculateTogether(speculation, faults, events, ranks, runners);
  return runners;
}

// Rank 0's, and the others from here. They have its limits, and what they plan but for their experts.
std::vector<std::unique_ptr<MeteredRunner>> LoadGroupsOfProcesses(
    const OpenedModel& model, DeviceKind device, const RunnerOptions& options,
    const Speculation& speculation, Faults faults, const LoadEvents& events,
    const std::shared_ptr<Collective>& ranks) {
  auto own = LoadRunner(model, device, options, events, ranks, speculation);
  if (speculation.is_on()) {
    try {
      own = Speculate(std::move(own), speculation, faults, events, ranks.get());
    } catch (const std::exception& error) {
      ranks->Fail(error.what());
      throw;
    }
  }
  const RunnerLimits limits = own->limits();
  const MemoryPlan plan = own->memory_plan();
  std::vector<std::unique_ptr<MeteredRunner>> runners;
  runners.push_back(std::move(own));
  for (int32_t rank = 1; rank < ranks->size(); ++rank) {
    runners.push_back(std::make_unique<RemoteRunner>(ranks, rank, limits, plan));
  }
  return runners;
}

}  // namespace

std::vector<std::unique_ptr<MeteredRunner>> LoadGroups(const OpenedModel& model, DeviceKind device,
                                                       const RunnerOptions& options,
                                                       const Speculation& speculation,
                                                       Faults faults, const LoadEvents& events,
                                                       const std::shared_ptr<Collective>& ranks) {
  return ranks == nullptr
             ? LoadGroupsHere(model, device, options, speculation, faults, events)
             : LoadGroupsOfProcesses(model, device, options, speculation, faults, events, ranks);
}

LocalModel OpenLocalModel(const std::filesystem::path& folder, const LocalOptions& options) {
  return StartLocalModel(OpenModel(folder, options.load_format), options);
}

LocalModel StartLocalModel(OpenedModel opened, const LocalOptions& options) {
  LocalModel model;
  model.folder = opened.folder;
  model.device = ChooseDevice(options.device);
  model.text = std::make_unique<const TextModel>(OpenText(opened, options.events));
  if (options.events.opened) options.events.opened(*model.text);
  WarnOfVocabulary(*model.text->tokenizer, *opened.config, options.events);
  const Speculation& speculation = options.speculation;
  const RunnerOptions runner_options = MakeRunnerOptions(model.device, options);
  OpenDraftModel(speculation, opened);
  if (options.dp_size > 1) {
    model.runners = LoadGroups(opened, model.device, runner_options, speculation, options.faults,
                               options.events, options.ranks);
  } else {
    auto runner = LoadRunner(opened, model.device, runner_options, options.events, options.ranks);
    if (speculation.is_on()) {
      runner = Speculate(std::move(runner), speculation, options.faults, options.events);
    }
    model.runners.push_back(std::move(runner));
  }
  model.config = std::move(opened.config);
  std::vector<Runner*> runners;
  for (const auto& runner : model.runners) runners.push_back(runner.get());
  model.engine = std::make_unique<Engine>(std::move(runners), options.scheduler);
  model.answers = std::make_unique<TextEngine>(*model.engine, *model.text);
  return model;
}

}  // namespace quire
