// What an EAGLE-3 head is, as the config.json of its own folder says it.
//
// Architecture Eagle3DeepseekV2ForCausalLM (or V3), as published for Kimi-K2.5 and on: one dense layer of
// latent attention, whose geometry is its own. It drafts for any trunk of its hidden size and vocabulary
// that has the layers that it reads; of the families served these are all but minicpm3, whose scalings no
// head was trained with.
#ifndef QUIRE_MODEL_EAGLE_CONFIG_H_
#define QUIRE_MODEL_EAGLE_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/json.h"
#include "model/config.h"

namespace quire {

struct EagleConfig {
  ModelConfig layer;  // one dense layer that drafts; its vocabulary is the trunk's
  int64_t draft_vocab_size = 0;
  // The layers of the trunk before which its residual stream is read, ascending.
  std::vector<int32_t> wanted_layers = {};
  bool input_norms = false;  // each of these is normed first
  bool norm_output = false;  // rows behind take the state after the last norm, else before it
};

// Throws Error(kInvalidArgument) with file, key, expected and actual for a head that is not known, or
// not `trunk`'s.
EagleConfig ParseEagleConfig(const JsonRef& config, const ModelConfig& trunk);
EagleConfig ReadEagleConfig(const std::filesystem::path& folder, const ModelConfig& trunk);

}  // namespace quire

#endif  // QUIRE_MODEL_EAGLE_CONFIG_H_
