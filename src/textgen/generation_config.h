// A GenerationConfig says how a model's makers want its answers drawn, and which tokens end them.
//
//   generation_config.json   eos_token_id (one or a list), temperature, top_p, top_k, min_p,
//                            repetition_penalty; all optional, and so is the file
//   config.json              eos_token_id, if the other file names none
//
// do_sample is not read: without it the "transformers" library answers greedily, while the servers that
// people know draw with the temperature that stands beside it, or with 1.
#ifndef QUIRE_TEXTGEN_GENERATION_CONFIG_H_
#define QUIRE_TEXTGEN_GENERATION_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <vector>

#include "step/sampling_params.h"

namespace quire {

struct GenerationConfig {
  std::vector<int32_t> eos_tokens = {};  // ascending, each once
  SamplingParams sampling = {};
};

// Throws Error(kInvalidArgument) with the file, the key, the expected and the actual.
GenerationConfig ReadGenerationConfig(const std::filesystem::path& folder);

}  // namespace quire

#endif  // QUIRE_TEXTGEN_GENERATION_CONFIG_H_
