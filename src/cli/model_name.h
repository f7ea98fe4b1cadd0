// Which model the flags mean, by what people type: a folder, a name of the Hugging Face Hub, or
// nothing.
#ifndef QUIRE_CLI_MODEL_NAME_H_
#define QUIRE_CLI_MODEL_NAME_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/flags.h"

namespace quire::cli {

struct NamedFolder {
  std::filesystem::path folder = {};
  std::string name = {};  // the folder's, or "owner/name" as it was typed
};

// The folder of the model that the flags mean: MODEL, --model or QUIRE_MODEL, as a path or as a
// name that is in the Hugging Face cache; without any, the bundled model. Throws
// Error(kInvalidArgument) if there is no such folder, with what comes near and the command that
// downloads it.
NamedFolder FindModel(const ModelFlags& flags);

// The folder of the bundled model, from models/ here, from the source tree that this program was
// built in, or from where it was installed. Throws Error(kInvalidArgument) with where it was looked
// for.
std::filesystem::path BundledModel();

// Whether an argument that may be a model or a text is a model: a folder that exists, a name that
// is in the Hugging Face cache, or a path by its looks, which has a / and no white space.
bool LooksLikeModel(const std::string& text);

}  // namespace quire::cli

#endif  // QUIRE_CLI_MODEL_NAME_H_
