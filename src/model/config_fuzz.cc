// Bytes -> config: refused with an Error, or a config that can be routed and counted with.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/json.h"
#include "model/config.h"

namespace quire {
namespace {

std::optional<ModelConfig> Parse(std::string_view text) {
  try {
    const Json json = ParseJson(text, "fuzz");
    return ParseModelConfig(JsonRef(json, "fuzz"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void Use(const ModelConfig& config) {
  QUIRE_CHECK(config.num_layers() >= 1);
  QUIRE_CHECK(config.rope_dim % 2 == 0);
  if (config.moe.expert_width > 0) Validate(config.moe.route);
  const ParameterCounts count = CountParameters(config);
  QUIRE_CHECK(count.active > 0 && count.active <= count.total, "{} of {}", count.active,
              count.total);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto config = quire::Parse({reinterpret_cast<const char*>(bytes), size});
  if (config) quire::Use(*config);
  return 0;
}
