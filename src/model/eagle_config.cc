#include "model/eagle_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace quire {
namespace {

constexpr int64_t kNumInputs = 3;

void RequireEagle(const JsonRef& config) {
  for (const JsonRef& name : config.At("architectures").Array()) {
    (void)name.OneOf({"Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"});
  }
  (void)config.At("num_hidden_layers").Int(1, 1);
  for (const char* key : {"norm_before_residual", "mlp_bias"}) {
    if (const auto found = config.Find(key)) {
      Require(!found->Bool(), "{}: expected false, got true", found->where());
    }
  }
}

// The same for a trunk and its head.
void RequireTrunks(const JsonRef& value, int64_t trunks) {
  const int64_t given = value.Int(1, int64_t{1} << 30);
  Require(given == trunks, "{}: expected the target model's, {}, got {}", value.where(), trunks,
          given);
}

std::vector<int32_t> ReadWantedLayers(const JsonRef& config, const ModelConfig& trunk) {
  const int32_t num_layers = trunk.num_layers();
  const auto eagle = config.Find("eagle_config");
  if (eagle) {
    if (const auto use = eagle->Find("use_aux_hidden_state")) {
      Require(use->Bool(), "{}: expected true, got false", use->where());
    }
  }
  const auto list = (eagle ? *eagle : config).Find("eagle_aux_hidden_state_layer_ids");
  if (!list) {
    Require(num_layers >= 6, "{}: expected a list: a target model of {} layers has no default",
            config.where() + ": eagle_aux_hidden_state_layer_ids", num_layers);
    return {2, num_layers / 2, num_layers - 3};
  }
  const std::vector<JsonRef> ids = list->Array();
  Require(std::ssize(ids) == kNumInputs, "{}: expected {} layers, got {}", list->where(),
          kNumInputs, ids.size());
  // A list that begins with 1 counts the layers behind which the stream is read.
  const int32_t shift = ids.front().value() == 1 ? 1 : 0;
  std::vector<int32_t> layers;
  for (const JsonRef& id : ids) {
    const auto layer = static_cast<int32_t>(id.Int(0, num_layers - 1 - shift)) + shift;
    Require(layers.empty() || layer > layers.back(), "{}: expected layers that ascend",
            list->where());
    layers.push_back(layer);
  }
  return layers;
}

bool IsTrue(const JsonRef& config, const char* key) {
  const auto found = config.Find(key);
  return found && found->Bool();
}

}  // namespace

EagleConfig ParseEagleConfig(const JsonRef& config, const ModelConfig& trunk) {
  RequireEagle(config);
  RequireTrunks(config.At("hidden_size"), trunk.hidden_size);
  if (const auto size = config.Find("target_hidden_size")) RequireTrunks(*size, trunk.hidden_size);
  RequireTrunks(config.At("vocab_size"), trunk.vocab_size);
  const bool is_scaled =
      trunk.embedding_scale != 1 || trunk.residual_scale != 1 || trunk.logit_scale != 1;
  Require(!is_scaled, "{}: expected a target model without scalings, got a {}", config.where(),
          trunk.family);

  // Heads carry keys of their target's experts, and have none.
  Json dense = config.value();
  for (const char* key : {"n_routed_experts", "num_local_experts", "num_experts", "mlp_layer_types",
                          "num_nextn_predict_layers", "num_mtp_layers"}) {
    dense.erase(key);
  }
  EagleConfig eagle;
  eagle.layer = ParseModelConfig(JsonRef(dense, config.where()));
  Require(!eagle.layer.indexer, "{}: index_topk: expected none: a head attends to all that it sees",
          config.where());
  eagle.layer.drafts = true;
  const auto vocabulary = config.Find("draft_vocab_size");
  eagle.draft_vocab_size = vocabulary ? vocabulary->Int(1, trunk.vocab_size) : trunk.vocab_size;
  eagle.wanted_layers = ReadWantedLayers(config, trunk);
  eagle.input_norms = IsTrue(config, "fc_norm");
  eagle.norm_output = IsTrue(config, "norm_output");
  return eagle;
}

EagleConfig ReadEagleConfig(const std::filesystem::path& folder, const ModelConfig& trunk) {
  const std::filesystem::path path = folder / "config.json";
  const Json json = ReadJsonFile(path);
  return ParseEagleConfig(JsonRef(json, path.string()), trunk);
}

}  // namespace quire
