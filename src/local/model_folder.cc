#include "local/model_folder.h"

#include "base/error.h"

namespace quire {

namespace fs = std::filesystem;

bool HasWeightFiles(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") ||
         fs::exists(folder / "model.safetensors.index.json");
}

OpenedModel OpenModel(const fs::path& folder, LoadFormat format) {
  Require(fs::is_directory(folder), "model: expected a folder with config.json, got {}{}",
          QuoteForMessage(folder.string()), fs::exists(folder) ? "" : ", which does not exist");
  OpenedModel model{.folder = folder,
                    .format = format,
                    .config = std::make_unique<const ModelConfig>(ReadModelConfig(folder)),
                    .weights = nullptr};
  if (format == LoadFormat::kDummy) {
    model.weights = MakeDummyWeights(*model.config);
    return model;
  }
  Require(HasWeightFiles(folder),
          "{}: expected model.safetensors or model.safetensors.index.json, got neither; made-up "
          "weights can stand in for them: --load-format dummy, LoadFormat::kDummy",
          folder.string());
  model.weights = OpenWeightFiles(folder, *model.config);
  return model;
}

}  // namespace quire
