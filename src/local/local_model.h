// A model of this machine, from its folder to text in and out: OpenLocalModel is all that a program
// needs to call.
#ifndef QUIRE_LOCAL_LOCAL_MODEL_H_
#define QUIRE_LOCAL_LOCAL_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/kv_layout.h"
#include "base/faults.h"
#include "base/units.h"
#include "device/collective.h"
#include "device/thread_pool.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "kernels/weight.h"
#include "local/device.h"
#include "local/model_folder.h"
#include "model/config.h"
#include "runner/layer_drafter.h"
#include "runner/memory_plan.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"
#include "textgen/text_engine.h"
#include "textgen/text_model.h"

namespace quire {

// What a caller may want to hear while a model is loaded, in this order and on the calling thread.
struct LoadEvents {
  // The tokenizer and the chat template are there. What is thrown ends loading; so for planned.
  std::function<void(const TextModel& text)> opened = {};
  // Something is odd, and can be lived with.
  std::function<void(const std::string& text)> warning = {};
  // Before any memory is taken.
  std::function<void(const MemoryPlan& plan)> planned = {};
  // So many bytes of weights are there, again and again.
  LoadProgress loaded = {};
  // The runner can run steps.
  std::function<void()> ready = {};
  // What steps with drafts cost, where that was measured to choose between them: a table.
  std::function<void(const std::string& table)> measured = {};
};

// Guessing ahead: several tokens of a sequence in a step, and the same text.
struct Speculation {
  enum class Algorithm {
    kNone,
    kNgram,   // what followed the last tokens where they stood before in the text
    kEagle,   // what the model's draft layer says
    kEagle3,  // what an EAGLE-3 head says, which is a folder of its own
  };
  Algorithm algorithm = Algorithm::kNone;
  // Where there are any, and not of kNgram: `shape` is ShapeAround them, and steps have those that pay
  // (runner/adaptive_drafter.h), as a measurement at the start and guesses of late say.
  std::vector<TreeShape> choices = {};
  TreeShape shape = {};                    // of kNgram a chain
  std::filesystem::path draft_model = {};  // of kEagle3: the head's folder

  bool is_on() const { return algorithm != Algorithm::kNone; }
};

// How a model is to be run. What is not set, the device decides.
struct LocalOptions {
  DeviceChoice device = DeviceChoice::kAuto;
  LoadFormat load_format = LoadFormat::kAuto;

  PageSize page_size{64};  // any gives the same results
  TokenCount context{0};   // of the longest sequence; 0: what the model was made for
  int32_t max_seqs = 16;   // that run at the same time
  // Of all sequences of a step; a longer prompt takes several steps.
  std::optional<TokenCount> max_step_tokens = {};
  // That the KV cache holds; 0: max_seqs sequences of the full context, or what fits, and on the
  // CPU no more than PoolRoom::kModest says.
  TokenCount pool_tokens{0};
  KvFormat kv_format = KvFormat::kLatentBf16;
  // Of a sparse model: RunnerOptions says what they mean.
  IndexKeyType index_type = IndexKeyType::kAuto;
  IndexKeyLayout index_layout = IndexKeyLayout::kAuto;
  int32_t index_top_k = 0;
  std::optional<StepMode> mode = {};  // with checks, eager unless this says otherwise
  StepChecks checks = StepChecks::kOff;
  bool deterministic = false;  // on a GPU: results do not depend on what else runs
  int32_t num_threads = ThreadPool::DefaultThreads();  // of all ranks together
  // Ranks that compute the model together, with the same results. RunnerOptions says more.
  int32_t tp_size = 1;
  int32_t ep_size = 1;
  // Groups, of a rank each, that run sequences of their own and share experts alone. The sequences, the
  // tokens of a step and of the KV cache above are of all together, and shared out evenly.
  int32_t dp_size = 1;
  // Rank 0's end of the group where the others are processes (local/ranks.h); otherwise all are of this one.
  std::shared_ptr<Collective> ranks = {};
  // That share this machine's memory, and num_threads; 0: all.
  int32_t ranks_of_machine = 0;
  int32_t ranks_of_cpus = 0;

  // Everything together stays within both: a fraction of MemoryOf(device), and so many bytes.
  double memory_fraction = 0.85;
  ByteOffset memory_limit{std::numeric_limits<int64_t>::max()};

  Speculation speculation = {};
  SchedulerOptions scheduler = {};
  Faults faults = {};
  LoadEvents events = {};
};

// The same for a runner, with all that the device decides, and with room for drafts where there are
// any. Threads and memory are shared out evenly between ranks. Throws Error(kInvalidArgument) if
// memory_fraction is not above 0 and up to 1, speculation is out of range or longer than the context,
// several ranks are to speculate by an EAGLE-3 head, or groups are to run on a GPU or with a tp size.
RunnerOptions MakeRunnerOptions(DeviceKind device, const LocalOptions& options);

// Opens the draft model that `speculation` names, if it does, as the model's head. Throws
// Error(kInvalidArgument) as OpenEagleHead does.
void OpenDraftModel(const Speculation& speculation, OpenedModel& model);

// Takes the memory of the device and loads the weights, the head's too if the model has one. `ranks` is that
// of LocalOptions; of groups, which is rank 0's runner, the others are told how to speculate. Throws as
// PlanMemory does.
std::unique_ptr<MeteredRunner> LoadRunner(const OpenedModel& model, DeviceKind device,
                                          const RunnerOptions& options,
                                          const LoadEvents& events = {},
                                          std::shared_ptr<Collective> ranks = nullptr,
                                          const Speculation& speculation = {});

// `target`, which was loaded with MakeRunnerOptions of the same speculation, speculating. Of one of several
// groups, `groups` is its end of their ranks: all groups do so at the same time, and measure together.
std::unique_ptr<MeteredRunner> Speculate(std::unique_ptr<MeteredRunner> target,
                                         const Speculation& speculation, Faults faults = {},
                                         const LoadEvents& events = {},
                                         Collective* groups = nullptr);

// A runner for every group of options.dp_size, speculating if that is on. Groups are threads, or with `ranks`
// processes. Throws as LoadRunner.
std::vector<std::unique_ptr<MeteredRunner>> LoadGroups(
    const OpenedModel& model, DeviceKind device, const RunnerOptions& options,
    const Speculation& speculation, Faults faults = {}, const LoadEvents& events = {},
    const std::shared_ptr<Collective>& ranks = nullptr);

// What answers, and what it is made of: each member uses those above it.
struct LocalModel {
  LocalModel() = default;
  LocalModel(LocalModel&&) = default;
  // Members would be replaced in the order they stand, while what is behind them still uses them.
  LocalModel& operator=(LocalModel&&) = delete;

  std::filesystem::path folder;
  DeviceKind device = DeviceKind::kCpu;
  std::unique_ptr<const ModelConfig> config;
  std::unique_ptr<const TextModel> text;
  std::vector<std::unique_ptr<MeteredRunner>> runners;  // one for each group, with the same limits
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TextEngine> answers;
};

// Opens the folder, loads the weights and starts the engine. What the folder lacks is found before the
// weights are read. Throws Error as ChooseDevice, OpenModel, OpenTextModel and PlanMemory do.
LocalModel OpenLocalModel(const std::filesystem::path& folder, const LocalOptions& options = {});

// The same for a model that is open already, where options depend on its config; options.load_format is
// not used.
LocalModel StartLocalModel(OpenedModel opened, const LocalOptions& options);

}  // namespace quire

#endif  // QUIRE_LOCAL_LOCAL_MODEL_H_
