// From a model folder to a runner that is ready.
#ifndef QUIRE_CLI_LOAD_H_
#define QUIRE_CLI_LOAD_H_

#include <filesystem>
#include <memory>
#include <vector>

#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "cli/backend.h"
#include "cli/flags.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/metered_runner.h"
#include "runner/runner_options.h"

namespace quire::cli {

// Nothing has been read but the config and the headers of the weight files.
struct OpenedModel {
  std::unique_ptr<const ModelConfig> config;  // on its own, because the weights refer to it
  std::unique_ptr<WeightSource> weights;
};

// Whether the folder has weights, whole or not.
bool HasWeightFiles(const std::filesystem::path& folder);

// Throws Error(kInvalidArgument) if the folder, the config or a file is missing or cannot be right.
OpenedModel OpenModel(const std::filesystem::path& folder, LoadFormat format);

// Whether loading prints the memory plan and its progress to stderr.
enum class LoadMessages { kShown, kHidden };

// Takes the memory of the device and loads the weights.
std::unique_ptr<MeteredRunner> LoadRunner(const OpenedModel& model, DeviceKind device,
                                          const RunnerOptions& options,
                                          LoadMessages messages = LoadMessages::kShown);

// The pages of the runner's KV cache.
PagePool MakePagePool(const RunnerLimits& limits);

// `count` sequences of `length` tokens each. Throws Error(kCapacityExceeded) if the pool is too
// small.
std::vector<PageList> TakeSequences(PagePool& pool, int64_t count, TokenCount length);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOAD_H_
