#include "cli/load.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "cli/progress.h"
#include "runner/memory_plan.h"

namespace quire::cli {

namespace fs = std::filesystem;

bool HasWeightFiles(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") ||
         fs::exists(folder / "model.safetensors.index.json");
}

OpenedModel OpenModel(const fs::path& folder, LoadFormat format) {
  Require(!folder.empty(),
          "MODEL: expected the folder of a model, got none; name it, or set QUIRE_MODEL");
  Require(fs::is_directory(folder), "MODEL: expected a folder with config.json, got {}{}",
          QuoteForMessage(folder.string()), fs::exists(folder) ? "" : ", which does not exist");
  OpenedModel model;
  model.config = std::make_unique<const ModelConfig>(ReadModelConfig(folder));
  if (format == LoadFormat::kDummy) {
    model.weights = MakeDummyWeights(*model.config);
    return model;
  }
  Require(HasWeightFiles(folder),
          "{}: expected model.safetensors or model.safetensors.index.json, got neither; "
          "--load-format dummy runs the model with made-up weights",
          folder.string());
  model.weights = OpenWeightFiles(folder, *model.config);
  return model;
}

std::unique_ptr<MeteredRunner> LoadRunner(const OpenedModel& model, DeviceKind device,
                                          const RunnerOptions& options, LoadMessages messages) {
  const MemoryPlan plan = PlanMemory(device, *model.config, *model.weights, options);
  if (messages == LoadMessages::kHidden) {
    return MakeRunner(device, *model.config, *model.weights, options, plan);
  }
  fmt::print(stderr, "{}", ToTable(plan));
  LoadingBar bar(plan.weights);
  auto runner = MakeRunner(device, *model.config, *model.weights, options, plan,
                           [&bar](ByteOffset loaded) { bar.Update(loaded); });
  bar.Finish();
  return runner;
}

PagePool MakePagePool(const RunnerLimits& limits) {
  return PagePool(limits.pool_pages - PageCount(1), limits.page_size);  // less the scratch page
}

std::vector<PageList> TakeSequences(PagePool& pool, int64_t count, TokenCount length) {
  std::vector<PageList> lists;
  for (int64_t i = 0; i < count; ++i) lists.emplace_back(pool.page_size());
  std::vector<ExtendRequest> requests;
  for (PageList& list : lists) requests.push_back({.list = &list, .new_length = length});
  if (!ExtendLists(pool, requests)) {
    throw Error(ErrorCode::kCapacityExceeded,
                "KV cache: {} sequences of {} tokens need {} pages of {} tokens, there are {}; "
                "--max-total-tokens sets how many",
                count, length, NewPagesFor(requests), pool.page_size(), pool.num_pages());
  }
  return lists;
}

}  // namespace quire::cli
