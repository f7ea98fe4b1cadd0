// The flags that say which model to run, and how.
#ifndef QUIRE_CLI_FLAGS_H_
#define QUIRE_CLI_FLAGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "attn/kv_layout.h"
#include "base/units.h"
#include "cli/command.h"
#include "device/thread_pool.h"
#include "local/local_model.h"
#include "local/ranks.h"
#include "runner/runner_options.h"

namespace quire::cli {

inline constexpr int64_t kAutoSteps = 0;

// What --model or its variable says.
struct NamedModel {
  std::string where = {};  // "--model" or "QUIRE_MODEL"
  std::string text = {};
};

// Which model to run, and how. What is not set is for the subcommand to choose.
struct ModelFlags {
  std::string model = {};  // MODEL: FindModel says what this and `named` mean
  std::optional<NamedModel> named = {};
  LoadFormat load_format = LoadFormat::kAuto;
  PageSize page_size{64};
  std::optional<TokenCount> context_length = {};
  std::optional<int32_t> max_running_requests = {};
  std::optional<TokenCount> chunked_prefill_size = {};
  std::optional<TokenCount> max_total_tokens = {};
  KvFormat kv_cache_dtype = KvFormat::kLatentBf16;
  IndexKeyType index_cache_dtype = IndexKeyType::kAuto;
  IndexKeyLayout index_cache_layout = IndexKeyLayout::kAuto;
  int32_t index_topk = 0;
  double mem_fraction_static = 0.85;
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = false;
  bool check = false;
  int32_t threads = ThreadPool::DefaultThreads();
  int32_t tp_size = 1;
  int32_t ep_size = 1;
  int32_t dp_size = 1;
  std::shared_ptr<ProcessRanks> ranks = {};  // of several processes: JoinRanks
  std::optional<StepMode> step_mode = {};
  bool disable_cuda_graph = false;
  Speculation::Algorithm speculative_algorithm = Speculation::Algorithm::kNone;
  std::optional<int64_t> speculative_num_steps = {};  // kAutoSteps: as many as pay
  std::optional<int64_t> speculative_eagle_topk = {};
  std::optional<int64_t> speculative_num_draft_tokens = {};
  std::string speculative_draft_model_path = {};
};

// As --speculative-algorithm has it.
const char* AlgorithmName(Speculation::Algorithm algorithm);

// A flag's "cpu" or "cuda".
DeviceKind ParseDevice(const std::string& where, const std::string& text);

// `flags` must outlive the reader.
void AddModelFlags(FlagReader& reader, ModelFlags& flags);

// The options that the flags ask for, and the room of `defaults` where they leave it open. Throws
// Error(kInvalidArgument) if flags contradict each other, or the device cannot be used.
LocalOptions MakeLocalOptions(const ModelFlags& flags, const RunnerOptions& defaults);
// The same for a runner.
RunnerOptions MakeOptions(const ModelFlags& flags, const RunnerOptions& defaults);

// The same for a command that runs steps of its own, and needs the context, the sequences and the KV
// tokens of `room`: throws Error(kInvalidArgument) if flags ask for less.
RunnerOptions MakeRoom(const ModelFlags& flags, const RunnerOptions& room);

}  // namespace quire::cli

#endif  // QUIRE_CLI_FLAGS_H_
