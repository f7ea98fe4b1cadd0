#include "textgen/generation_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/json.h"

namespace quire {
namespace {

int32_t ReadToken(const JsonRef& value) {
  return static_cast<int32_t>(value.Int(0, std::numeric_limits<int32_t>::max()));
}

std::vector<int32_t> ReadEosTokens(const JsonRef& file) {
  std::vector<int32_t> tokens;
  const std::optional<JsonRef> value = file.Find("eos_token_id");
  if (!value) return tokens;
  if (value->value().is_array()) {
    for (const JsonRef& token : value->Array()) tokens.push_back(ReadToken(token));
  } else {
    tokens.push_back(ReadToken(*value));
  }
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

void ReadFloat(const JsonRef& file, std::string_view key, double min, double max, float& target) {
  const std::optional<JsonRef> value = file.Find(key);
  if (!value) return;
  const double number = value->Number();
  Require(number >= min && number <= max, "{}: expected {}..{}, got {}", value->where(), min, max,
          number);
  target = static_cast<float>(number);
}

SamplingParams ReadSampling(const JsonRef& file) {
  constexpr double kMost = 1e4;
  SamplingParams sampling;
  ReadFloat(file, "temperature", 0, kMost, sampling.temperature);
  ReadFloat(file, "top_p", 1e-6, 1, sampling.top_p);
  ReadFloat(file, "min_p", 0, 1, sampling.min_p);
  ReadFloat(file, "repetition_penalty", 1.0 / kMost, kMost, sampling.repetition_penalty);
  if (const std::optional<JsonRef> top_k = file.Find("top_k")) {
    sampling.top_k = static_cast<int32_t>(top_k->Int(0, std::numeric_limits<int32_t>::max()));
  }
  return sampling;
}

}  // namespace

GenerationConfig ReadGenerationConfig(const std::filesystem::path& folder) {
  GenerationConfig config;
  if (const auto path = folder / "generation_config.json"; std::filesystem::exists(path)) {
    const Json file = ReadJsonFile(path);
    const JsonRef root(file, path.string());
    config.eos_tokens = ReadEosTokens(root);
    config.sampling = ReadSampling(root);
  }
  if (const auto path = folder / "config.json";
      config.eos_tokens.empty() && std::filesystem::exists(path)) {
    const Json file = ReadJsonFile(path);
    config.eos_tokens = ReadEosTokens(JsonRef(file, path.string()));
  }
  return config;
}

}  // namespace quire
