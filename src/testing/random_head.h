// An EAGLE-3 head of random weights for any small model.
#ifndef QUIRE_TESTING_RANDOM_HEAD_H_
#define QUIRE_TESTING_RANDOM_HEAD_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/config.h"

namespace quire::testing {

// What a test changes of it before it is written.
struct HeadChanges {
  std::function<void(Json& config)> config = {};
  std::function<void(std::vector<StoredTensor>& tensors)> tensors = {};
};

// Writes a head for `trunk`, of three layers or more, to `folder`, which is made. Its rows are narrower than
// those of any model here, and it knows every third of the model's tokens.
inline std::filesystem::path WriteRandomHead(const std::filesystem::path& folder,
                                             const ModelConfig& trunk,
                                             const HeadChanges& changes = {}) {
  constexpr int64_t kHeads = 3, kQueryRank = 12, kLatent = 16, kNope = 8, kRope = 8, kValue = 12;
  constexpr int64_t kWidth = 40;
  const int64_t hidden = trunk.hidden_size;
  const int64_t num_tokens = trunk.vocab_size / 3;
  const int32_t num_layers = trunk.num_layers();
  Json config = {{"architectures", {"Eagle3DeepseekV2ForCausalLM"}},
                 {"model_type", "deepseek_v3"},
                 {"num_hidden_layers", 1},
                 {"vocab_size", trunk.vocab_size},
                 {"draft_vocab_size", num_tokens},
                 {"hidden_size", hidden},
                 {"intermediate_size", kWidth},
                 {"num_attention_heads", kHeads},
                 {"q_lora_rank", kQueryRank},
                 {"kv_lora_rank", kLatent},
                 {"qk_nope_head_dim", kNope},
                 {"qk_rope_head_dim", kRope},
                 {"v_head_dim", kValue},
                 {"rms_norm_eps", 1e-5},
                 {"max_position_embeddings", trunk.max_context},
                 {"rope_theta", 50000},
                 {"first_k_dense_replace", 0},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", "float32"},
                 {"eagle_config",
                  {{"eagle_aux_hidden_state_layer_ids", {0, num_layers / 2, num_layers - 1}}}}};
  if (changes.config) changes.config(config);

  std::list<std::vector<std::byte>> memory;
  std::vector<StoredTensor> tensors;
  std::mt19937_64 random(19);
  const auto add = [&](const std::string& name, FileDType dtype, const std::vector<int64_t>& shape,
                       const auto& values) {
    auto& bytes = memory.emplace_back(values.size() * sizeof(values[0]));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors.push_back({.name = name, .dtype = dtype, .shape = shape, .bytes = bytes});
  };
  const auto add_matrix = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(inputs)));
    std::vector<float> values(static_cast<size_t>(outputs * inputs));
    for (float& value : values) value = normal(random);
    add(name + ".weight", FileDType::kF32, {outputs, inputs}, values);
  };
  const auto add_norm = [&](const std::string& name, int64_t size) {
    add(name + ".weight", FileDType::kF32, {size},
        std::vector<float>(static_cast<size_t>(size), 1));
  };
  add_matrix("fc", hidden, 3 * hidden);
  add_norm("midlayer.input_layernorm", hidden);
  add_norm("midlayer.hidden_norm", hidden);
  const std::string attention = "midlayer.self_attn.";
  add_matrix(attention + "q_a_proj", kQueryRank, 2 * hidden);
  add_norm(attention + "q_a_layernorm", kQueryRank);
  add_matrix(attention + "q_b_proj", kHeads * (kNope + kRope), kQueryRank);
  add_matrix(attention + "kv_a_proj_with_mqa", kLatent + kRope, 2 * hidden);
  add_norm(attention + "kv_a_layernorm", kLatent);
  add_matrix(attention + "kv_b_proj", kHeads * (kNope + kValue), kLatent);
  add_matrix(attention + "o_proj", hidden, kHeads * kValue);
  add_norm("midlayer.post_attention_layernorm", hidden);
  add_matrix("midlayer.mlp.gate_proj", kWidth, hidden);
  add_matrix("midlayer.mlp.up_proj", kWidth, hidden);
  add_matrix("midlayer.mlp.down_proj", hidden, kWidth);
  add_norm("norm", hidden);
  add_matrix("lm_head", num_tokens, hidden);
  std::vector<int64_t> offsets;  // token i is 3 * i of the model's
  for (int64_t i = 0; i < num_tokens; ++i) offsets.push_back(2 * i);
  add("d2t", FileDType::kI64, {num_tokens}, offsets);
  if (changes.tensors) changes.tensors(tensors);

  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  WriteSafetensors(folder / "model.safetensors", tensors);
  return folder;
}

}  // namespace quire::testing

#endif  // QUIRE_TESTING_RANDOM_HEAD_H_
