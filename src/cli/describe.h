// Numbers in words, and a model in words and in JSON.
#ifndef QUIRE_CLI_DESCRIBE_H_
#define QUIRE_CLI_DESCRIBE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "attn/kv_layout.h"
#include "model/config.h"
#include "model/eagle_config.h"

namespace quire::cli {

// Three digits or more: "0.98", "12.3", "1234".
std::string FormatDigits(double value);

// "1.03B", "671M", "12.3k", "980".
std::string FormatCount(int64_t count);

// "0 dense, 1..26 MoE".
std::string DescribeLayers(const ModelConfig& config);

// "bf16", as flags name it.
const char* KvTypeName(KvFormat format);

// A line for each part of the model: its name, then what it is like.
std::string Describe(const ModelConfig& config);
std::string Describe(const EagleConfig& head);

// The same as numbers and names.
nlohmann::ordered_json ConfigToJson(const ModelConfig& config);
nlohmann::ordered_json ConfigToJson(const EagleConfig& head);

}  // namespace quire::cli

#endif  // QUIRE_CLI_DESCRIBE_H_
