// A model's folder: config.json, and the weights beside it.
#ifndef QUIRE_LOCAL_MODEL_FOLDER_H_
#define QUIRE_LOCAL_MODEL_FOLDER_H_

#include <filesystem>
#include <memory>
#include <optional>

#include "model/config.h"
#include "model/eagle.h"
#include "model/weight_source.h"

namespace quire {

// Where weights come from. kAuto and kSafetensors read the folder's files; kDummy makes weights up.
enum class LoadFormat { kAuto, kSafetensors, kDummy };

// Nothing has been read but the config and the headers of the weight files.
struct OpenedModel {
  std::filesystem::path folder;
  LoadFormat format = LoadFormat::kAuto;
  std::unique_ptr<const ModelConfig> config;  // on its own, because the weights refer to it
  std::unique_ptr<WeightSource> weights;
  std::optional<OpenedHead> head = {};  // an EAGLE-3 head that drafts for it (model/eagle.h)
};

// Whether the folder has weights, whole or not.
bool HasWeightFiles(const std::filesystem::path& folder);

// Throws Error(kInvalidArgument) if the folder, the config or a file is missing or cannot be right.
OpenedModel OpenModel(const std::filesystem::path& folder, LoadFormat format = LoadFormat::kAuto);

}  // namespace quire

#endif  // QUIRE_LOCAL_MODEL_FOLDER_H_
