#include "model/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/test_files.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using quire::testing::ErrorMessage;

// The config.json of published models, by file name. Those of the sparse two, deepseek_v32 and
// glm_5_2_transformers5, are not copies: they are made of V3's and of what transformers has by default.
const std::filesystem::path kConfigs = QUIRE_MODEL_CONFIGS;

Json ReadConfig(const std::string& name) { return ReadJsonFile(kConfigs / (name + ".json")); }

ModelConfig Parse(const Json& json) { return ParseModelConfig(JsonRef(json, "config.json")); }

using Change = std::function<void(Json&)>;

ModelConfig ParseChanged(const std::string& name, const Change& change) {
  Json json = ReadConfig(name);
  change(json);
  return Parse(json);
}

std::string Refusal(const std::string& name, const Change& change) {
  return ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)ParseChanged(name, change); });
}

std::string RefusalOf(const std::string& name, const std::string& key, const Json& value) {
  return Refusal(name, [&](Json& json) { json[key] = value; });
}

// What decides about tensors and routing, of one model.
struct Model {
  const char* file;
  const char* family;
  int64_t hidden_size;
  int64_t vocab_size;
  int64_t max_context;
  int32_t num_heads;
  int32_t q_lora_rank;
  int32_t latent_dim, nope_dim, rope_dim, value_dim;
  int32_t num_layers, num_dense;
  int64_t dense_width;
  int32_t num_experts, top_k, num_groups, top_groups;
  int64_t expert_width, shared_width;
  ExpertSelection selection;
  double theta;
  RopeScaling scaling;
  double factor;
  int64_t total_parameters, active_parameters;  // as transformers counts them

  friend std::ostream& operator<<(std::ostream& out, const Model& model) {
    return out << model.file;
  }
};

constexpr auto kGreedy = ExpertSelection::kGreedy;
constexpr auto kGroupMax = ExpertSelection::kGroupMax;
constexpr auto kGroupTopTwo = ExpertSelection::kGroupTopTwo;
constexpr auto kNone = RopeScaling::kNone;
constexpr auto kYarn = RopeScaling::kYarn;
constexpr auto kLongRope = RopeScaling::kLongRope;

// clang-format off
const Model kModels[] = {
    {"deepseek_v2", "deepseek_v2", 5120, 102400, 163840, 128, 1536, 512, 128, 64, 128,
     60, 1, 12288, 160, 6, 8, 3, 1536, 2 * 1536, kGroupMax, 10000, kYarn, 40,
     235741434880, 20851517440},
    {"deepseek_v2_lite", "deepseek_v2", 2048, 102400, 163840, 16, 0, 512, 128, 64, 128,
     27, 1, 10944, 64, 6, 1, 1, 1408, 2 * 1408, kGreedy, 10000, kYarn, 40,
     15706484224, 2451437056},
    {"deepseek_v2_lite_transformers5", "deepseek_v2",
     2048, 102400, 163840, 16, 0, 512, 128, 64, 128,
     27, 1, 10944, 64, 6, 1, 1, 1408, 2 * 1408, kGreedy, 10000, kYarn, 40,
     15706484224, 2451437056},
    {"deepseek_v3", "deepseek_v3", 7168, 129280, 163840, 128, 1536, 512, 128, 64, 128,
     61, 3, 18432, 256, 8, 8, 4, 2048, 2048, kGroupTopTwo, 10000, kYarn, 40,
     671026419200, 36625625600},
    {"kimi_k2", "kimi_k2", 7168, 163840, 131072, 64, 1536, 512, 128, 64, 128,
     61, 1, 18432, 384, 8, 1, 1, 2048, 2048, kGreedy, 50000, kYarn, 32,
     1026408232448, 31687102976},
    {"moonlight", "deepseek_v3", 2048, 163840, 8192, 16, 0, 512, 128, 64, 128,
     27, 1, 11264, 64, 6, 1, 1, 1408, 2 * 1408, kGreedy, 50000, kNone, 1,
     15960110208, 2579233920},
    {"kimi_vl", "deepseek_v3", 2048, 163840, 131072, 16, 0, 512, 128, 64, 128,
     27, 1, 11264, 64, 6, 1, 1, 1408, 2 * 1408, kGreedy, 800000, kNone, 1,
     15960110208, 2579233920},
    {"glm_4_7_flash", "glm4_moe_lite", 2048, 154880, 202752, 20, 768, 512, 192, 64, 256,
     47, 1, 10240, 64, 4, 1, 1, 1536, 1536, kGreedy, 1000000, kNone, 1,
     29943393920, 3579573888},
    {"minicpm3_4b", "minicpm3", 2560, 73448, 32768, 40, 768, 256, 64, 32, 64,
     62, 62, 6400, 1, 1, 1, 1, 0, 0, kGreedy, 10000, kLongRope, 1,
     4073875968, 4073875968},
    {"youtu_llm_2b", "youtu", 2048, 128256, 131072, 16, 1536, 512, 128, 64, 128,
     32, 32, 6144, 1, 1, 1, 1, 0, 0, kGreedy, 1600000, kNone, 1,
     1961560064, 1961560064},
    {"a_x_k1_transformers5", "axk1", 7168, 163840, 131072, 64, 1536, 512, 128, 64, 128,
     61, 1, 18432, 192, 8, 8, 4, 2048, 2048, kGroupTopTwo, 10000, kYarn, 4,
     518983063808, 31604946176},
    {"deepseek_v32", "deepseek_v32", 7168, 129280, 163840, 128, 1536, 512, 128, 64, 128,
     61, 3, 18432, 256, 8, 8, 4, 2048, 2048, kGroupTopTwo, 10000, kYarn, 40,
     671877944064, 37477150464},
    {"glm_5_2_transformers5", "glm_moe_dsa", 6144, 154880, 202752, 64, 2048, 512, 192, 64, 256,
     78, 3, 12288, 256, 8, 1, 1, 2048, 2048, kGreedy, 1000000, kNone, 1,
     743377019904, 40298953728},
};
// clang-format on

class PublishedModelTest : public ::testing::TestWithParam<Model> {};

TEST_P(PublishedModelTest, IsReadAsPublished) {
  const Model& model = GetParam();
  const ModelConfig config = Parse(ReadConfig(model.file));
  EXPECT_EQ(config.family, model.family);
  EXPECT_EQ(config.weight_dtype, "bfloat16");
  EXPECT_EQ(config.hidden_size, model.hidden_size);
  EXPECT_EQ(config.vocab_size, model.vocab_size);
  EXPECT_EQ(config.max_context, model.max_context);
  EXPECT_EQ(config.num_heads, model.num_heads);
  EXPECT_EQ(config.q_lora_rank, model.q_lora_rank);
  EXPECT_EQ(config.latent_dim, model.latent_dim);
  EXPECT_EQ(config.nope_dim, model.nope_dim);
  EXPECT_EQ(config.rope_dim, model.rope_dim);
  EXPECT_EQ(config.value_dim, model.value_dim);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.latent_norm_eps, 1e-6);
  EXPECT_EQ(config.dense_width, model.dense_width);
  std::vector<LayerKind> layers(model.num_layers, LayerKind::kMoe);
  std::fill_n(layers.begin(), model.num_dense, LayerKind::kDense);
  EXPECT_EQ(config.layers, layers);

  const RouteShape& route = config.moe.route;
  EXPECT_EQ(route.num_experts, model.num_experts);
  EXPECT_EQ(route.top_k, model.top_k);
  EXPECT_EQ(route.num_groups, model.num_groups);
  EXPECT_EQ(route.top_groups, model.top_groups);
  EXPECT_EQ(route.selection, model.selection);
  EXPECT_EQ(config.moe.expert_width, model.expert_width);
  EXPECT_EQ(config.moe.shared_width, model.shared_width);
  const bool by_sigmoid = model.num_experts > 1 && config.family != "deepseek_v2";
  EXPECT_EQ(route.score, by_sigmoid ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax);
  EXPECT_EQ(route.normalize, by_sigmoid);
  EXPECT_EQ(config.moe.route_bias, by_sigmoid);
  EXPECT_NO_THROW(Validate(route));

  EXPECT_EQ(config.rope.theta, model.theta);
  EXPECT_EQ(config.rope.scaling, model.scaling);
  EXPECT_EQ(config.rope.factor, model.factor);

  const ParameterCounts count = CountParameters(config);
  EXPECT_EQ(count.total, model.total_parameters);
  EXPECT_EQ(count.active, model.active_parameters);
}

INSTANTIATE_TEST_SUITE_P(All, PublishedModelTest, ::testing::ValuesIn(kModels),
                         [](const auto& model) { return std::string(model.param.file); });

TEST(ConfigTest, DeepseekV3InItsParticulars) {
  const ModelConfig config = Parse(ReadConfig("deepseek_v3"));
  EXPECT_EQ(config.moe.route.scale, 2.5f);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.num_draft_layers, 1);
  ASSERT_TRUE(config.fp8_blocks.has_value());
  EXPECT_EQ(config.fp8_blocks->rows, 128);
  EXPECT_EQ(config.fp8_blocks->columns, 128);
  EXPECT_EQ(config.eos_tokens, std::vector<int32_t>{1});
  EXPECT_EQ(config.bos_token, 0);
  EXPECT_EQ(config.embedding_scale, 1.0);
  EXPECT_EQ(config.residual_scale, 1.0);
  EXPECT_EQ(config.logit_scale, 1.0);
  EXPECT_EQ(config.tensor_prefix, "");
  EXPECT_EQ(config.rope.pairs, RopePairs::kInterleaved);
  EXPECT_EQ(config.rope.original_context, 4096);
  EXPECT_EQ(config.rope.beta_fast, 32.0);
  EXPECT_EQ(config.rope.beta_slow, 1.0);
  EXPECT_EQ(config.rope.mscale, 1.0);
  EXPECT_EQ(config.rope.mscale_all_dim, 1.0);
  EXPECT_TRUE(config.rope.truncate);
  EXPECT_FALSE(config.rope.attention_factor.has_value());
}

TEST(ConfigTest, MiniCpm3InItsParticulars) {
  const ModelConfig config = Parse(ReadConfig("minicpm3_4b"));
  EXPECT_EQ(config.embedding_scale, 12.0);
  EXPECT_DOUBLE_EQ(config.residual_scale, 1.4 / std::sqrt(62.0));
  EXPECT_DOUBLE_EQ(config.logit_scale, 0.1);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.moe.expert_width, 0);
  EXPECT_EQ(config.rope.pairs, RopePairs::kHalves);
  EXPECT_EQ(config.rope.short_factor.size(), 16u);
  EXPECT_EQ(config.rope.long_factor.back(), 16.940876586213285);
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{2, 73440}));
}

TEST(ConfigTest, YoutuInItsParticulars) {
  const ModelConfig config = Parse(ReadConfig("youtu_llm_2b"));
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope.pairs, RopePairs::kInterleaved);
  EXPECT_EQ(config.num_draft_layers, 0);
  EXPECT_EQ(config.embedding_scale, 1.0);
  EXPECT_EQ(config.eos_tokens, std::vector<int32_t>{128001});
  EXPECT_EQ(config.bos_token, 128000);
}

TEST(ConfigTest, AxK1InItsParticulars) {
  const ModelConfig config = Parse(ReadConfig("a_x_k1_transformers5"));
  EXPECT_TRUE(config.moe.post_mlp_norm);
  EXPECT_EQ(config.moe.route.scale, 2.5f);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.num_draft_layers, 0);
  EXPECT_EQ(config.rope.pairs, RopePairs::kInterleaved);
  EXPECT_EQ(config.rope.original_context, 32768);
  EXPECT_EQ(config.eos_tokens, std::vector<int32_t>{163691});
}

TEST(ConfigTest, ExpertsHaveANormAfterThemInOneFamilyOnly) {
  const auto spelt = [](Json& json) { json["model_type"] = "AXK1"; };  // as first published
  EXPECT_TRUE(ParseChanged("a_x_k1_transformers5", spelt).moe.post_mlp_norm);
  for (const Model& model : kModels) {
    const ModelConfig config = Parse(ReadConfig(model.file));
    EXPECT_EQ(config.moe.post_mlp_norm, config.family == "axk1") << model.file;
  }
}

TEST(ConfigTest, AnMscaleOf1Beside0IsAsNone) {
  const auto scaled = [](double mscale) {
    return [mscale](Json& json) {
      json["rope_scaling"]["mscale"] = mscale;
      json["rope_scaling"]["mscale_all_dim"] = 0.0;
    };
  };
  const RopeConfig rope = ParseChanged("deepseek_v3", scaled(1.0)).rope;
  const RopeConfig unscaled = ParseChanged("deepseek_v3", [](Json& json) {
                                json["rope_scaling"].erase("mscale");
                                json["rope_scaling"].erase("mscale_all_dim");
                              }).rope;
  EXPECT_EQ(rope.mscale, unscaled.mscale);
  EXPECT_EQ(rope.mscale_all_dim, unscaled.mscale_all_dim);
  EXPECT_EQ(Refusal("deepseek_v3", scaled(0.707)),
            "config.json: rope_scaling.mscale_all_dim: expected more than 0 and at most 1000000, "
            "got 0");
}

TEST(ConfigTest, WhetherEmbeddingsAreTiedIsTheFamilysWhereTheFileLeavesItUnsaid) {
  const auto unsaid = [](Json& json) { json.erase("tie_word_embeddings"); };
  EXPECT_TRUE(ParseChanged("youtu_llm_2b", unsaid).tied_embeddings);
  EXPECT_TRUE(ParseChanged("minicpm3_4b", unsaid).tied_embeddings);
  EXPECT_FALSE(ParseChanged("deepseek_v2", unsaid).tied_embeddings);
  EXPECT_FALSE(ParseChanged("deepseek_v3", unsaid).tied_embeddings);
  EXPECT_TRUE(ParseChanged("youtu_llm_2b", [&](Json& json) {
                unsaid(json);
                json["model_type"] = "youtu_llm";  // by its architecture
              }).tied_embeddings);
  const auto untied = [](Json& json) { json["tie_word_embeddings"] = false; };
  EXPECT_FALSE(ParseChanged("youtu_llm_2b", untied).tied_embeddings);
}

TEST(ConfigTest, MiniCpm3ScalingsThatAreNullDoNothing) {
  const ModelConfig config = ParseChanged("minicpm3_4b", [](Json& json) {
    json["scale_depth"] = nullptr;
    json["dim_model_base"] = nullptr;
  });
  EXPECT_EQ(config.residual_scale, 1.0);
  EXPECT_EQ(config.logit_scale, 1.0);
}

TEST(ConfigTest, LongRopeGrowsByTheContextsUnlessTheFileSays) {
  const auto grown = [](const Json& factor) {
    return ParseChanged("minicpm3_4b", [&](Json& json) {
      json["rope_scaling"]["original_max_position_embeddings"] = 8192;
      json["rope_scaling"]["factor"] = factor;
    });
  };
  EXPECT_EQ(grown(nullptr).rope.factor, 4.0);
  EXPECT_EQ(grown(3.5).rope.factor, 3.5);
}

TEST(ConfigTest, BothSpellingsSayTheSame) {
  const ModelConfig four = Parse(ReadConfig("deepseek_v2_lite"));
  const ModelConfig five = Parse(ReadConfig("deepseek_v2_lite_transformers5"));
  EXPECT_EQ(four.rope.mscale, 0.707);
  EXPECT_EQ(five.rope.mscale, 0.707);
  EXPECT_EQ(five.rope.mscale_all_dim, four.rope.mscale_all_dim);
  EXPECT_EQ(five.rope.original_context, four.rope.original_context);
  EXPECT_EQ(five.rope.scaling, four.rope.scaling);
  EXPECT_EQ(five.weight_dtype, four.weight_dtype);
}

TEST(ConfigTest, ExpertsAndDraftLayersByTheirOtherNames) {
  const ModelConfig config = ParseChanged("deepseek_v3", [](Json& json) {
    json["num_local_experts"] = json["n_routed_experts"];
    json.erase("n_routed_experts");
    json["num_mtp_layers"] = 2;
    json.erase("num_nextn_predict_layers");
  });
  EXPECT_EQ(config.moe.route.num_experts, 256);
  EXPECT_EQ(config.num_draft_layers, 2);
}

TEST(ConfigTest, AModelDraftsWithItsOneDraftLayer) {
  const ModelConfig config = Parse(ReadConfig("deepseek_v3"));
  EXPECT_FALSE(config.drafts);
  EXPECT_TRUE(WithDraftLayer(config).drafts);
  EXPECT_EQ(config.draft_kind(), LayerKind::kMoe);
  EXPECT_FALSE(config.HasIndexer(config.num_layers()));
  // It chooses for itself, whatever the trunk's last layers do.
  const ModelConfig sparse = Parse(ReadConfig("glm_5_2_transformers5"));
  EXPECT_FALSE(sparse.HasIndexer(sparse.num_layers() - 1));
  EXPECT_TRUE(sparse.HasIndexer(sparse.num_layers()));
}

TEST(ConfigTest, AModelWithoutADraftLayerOrWithSeveralIsRefusedByNameWhenAskedToDraft) {
  const auto refusal = [](const char* name, int32_t num_draft_layers) {
    ModelConfig config = Parse(ReadConfig(name));
    config.num_draft_layers = num_draft_layers;
    return ErrorMessage([&] { (void)WithDraftLayer(config); });
  };
  EXPECT_EQ(refusal("deepseek_v2_lite", 0),
            "deepseek_v2: drafting: expected a model with one draft layer, got "
            "num_nextn_predict_layers 0");
  EXPECT_EQ(refusal("deepseek_v3", 3),
            "deepseek_v3: drafting: expected a model with one draft layer, got "
            "num_nextn_predict_layers 3");
  EXPECT_NE(
      refusal("minicpm3_4b", 1).find("minicpm3: drafting: expected a model without scale_emb"),
      std::string::npos);
}

TEST(ConfigTest, RopeParametersWithoutATypeAreUnscaled) {
  const ModelConfig config = ParseChanged("moonlight", [](Json& json) {
    json.erase("rope_theta");
    json["rope_parameters"] = {{"rope_theta", 12345.0}};
  });
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config.rope.theta, 12345.0);
}

TEST(ConfigTest, RopeInterleaveIsReadWhereTheModelHasTheChoice) {
  const auto pairs = [](const char* name, bool interleave) {
    return ParseChanged(name, [&](Json& json) { json["rope_interleave"] = interleave; }).rope.pairs;
  };
  EXPECT_EQ(pairs("moonlight", true), RopePairs::kInterleaved);
  EXPECT_EQ(pairs("moonlight", false), RopePairs::kHalves);
  EXPECT_EQ(pairs("glm_4_7_flash", false), RopePairs::kHalves);
  EXPECT_EQ(pairs("youtu_llm_2b", false), RopePairs::kHalves);
  EXPECT_EQ(pairs("deepseek_v2_lite", true), RopePairs::kInterleaved);
  EXPECT_EQ(pairs("minicpm3_4b", false), RopePairs::kHalves);
  EXPECT_EQ(RefusalOf("deepseek_v2_lite", "rope_interleave", false),
            "config.json: rope_interleave: expected true of this model, got false");
  EXPECT_EQ(RefusalOf("minicpm3_4b", "rope_interleave", true),
            "config.json: rope_interleave: expected false of this model, got true");
}

TEST(ConfigTest, LayersByAList) {
  const ModelConfig config = ParseChanged("moonlight", [](Json& json) {
    json["num_hidden_layers"] = 3;
    json["mlp_layer_types"] = {"sparse", "dense", "sparse"};
    json.erase("first_k_dense_replace");
  });
  EXPECT_EQ(config.layers, (std::vector{LayerKind::kMoe, LayerKind::kDense, LayerKind::kMoe}));
}

TEST(ConfigTest, LayersByTheirDistance) {
  const ModelConfig config = ParseChanged("moonlight", [](Json& json) {
    json["num_hidden_layers"] = 5;
    json["moe_layer_freq"] = 2;
  });
  EXPECT_EQ(config.layers, (std::vector{LayerKind::kDense, LayerKind::kDense, LayerKind::kMoe,
                                        LayerKind::kDense, LayerKind::kMoe}));
}

TEST(ConfigTest, AModelMayHaveNoExperts) {
  for (const Change& change : std::vector<Change>{
           [](Json& json) { json["n_routed_experts"] = nullptr; },
           [](Json& json) { json["first_k_dense_replace"] = json["num_hidden_layers"]; }}) {
    const ModelConfig config = ParseChanged("moonlight", change);
    EXPECT_EQ(config.layers, std::vector<LayerKind>(27, LayerKind::kDense));
    EXPECT_EQ(config.moe.expert_width, 0);
  }
}

TEST(ConfigTest, AModelMayHaveNoDenseLayersOrSharedExperts) {
  const ModelConfig config = ParseChanged("moonlight", [](Json& json) {
    json["first_k_dense_replace"] = 0;
    json.erase("intermediate_size");
    json["n_shared_experts"] = nullptr;
  });
  EXPECT_EQ(config.layers, std::vector<LayerKind>(27, LayerKind::kMoe));
  EXPECT_EQ(config.dense_width, 0);
  EXPECT_EQ(config.moe.shared_width, 0);
}

TEST(ConfigTest, AnUnknownModelTypeIsRecognisedByItsArchitecture) {
  const ModelConfig config =
      ParseChanged("minicpm3_4b", [](Json& json) { json["model_type"] = "ours"; });
  EXPECT_EQ(config.family, "ours");
  EXPECT_EQ(config.embedding_scale, 12.0);
  EXPECT_EQ(config.rope.pairs, RopePairs::kHalves);
}

TEST(ConfigTest, AnUnknownModelIsRefusedByNameWithWhatItLacks) {
  const auto ours = [](Json& json) {
    json["model_type"] = "ours";
    json["architectures"] = {"OursForCausalLM"};
  };
  const std::string known =
      "config.json: model_type: expected one of \"deepseek_v2\", \"deepseek_v3\", \"kimi_k2\", "
      "\"glm4_moe_lite\", \"minicpm3\", \"youtu\", \"axk1\", \"deepseek_v32\", \"glm_moe_dsa\", or "
      "an architecture of theirs, got "
      "\"ours\"; ";
  const std::string unknown =
      "it has the fields of latent attention, but what it computes besides is not known here: "
      "docs/add-a-model.md says how a family is added";
  for (const char* file : {"deepseek_v2", "deepseek_v3", "minicpm3_4b", "a_x_k1_transformers5"}) {
    EXPECT_EQ(Refusal(file, ours), known + unknown) << file;
  }
  EXPECT_EQ(Refusal("deepseek_v3",
                    [&](Json& json) {
                      ours(json);
                      json.erase("kv_lora_rank");
                    }),
            known + "it lacks the fields of latent attention, kv_lora_rank first");
}

TEST(ConfigTest, AVisionLanguageModelIsItsTextConfig) {
  const ModelConfig config = Parse(ReadConfig("kimi_vl"));
  EXPECT_EQ(config.tensor_prefix, "language_model.");
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{163585, 163586}));
  EXPECT_EQ(Refusal("kimi_vl", [](Json& json) { json["text_config"].erase("kv_lora_rank"); }),
            "config.json: text_config.kv_lora_rank: missing");
  // Of the whole file, not of the part.
  EXPECT_EQ(RefusalOf("kimi_vl", "quantization_config", {{"quant_method", "awq"}}),
            "config.json: quantization_config.quant_method: expected one of \"fp8\", got \"awq\"");
}

TEST(ConfigTest, ADeepseekV2MayRouteAsV3Does) {  // DeepSeek-VL2
  const ModelConfig config = ParseChanged("deepseek_v2", [](Json& json) {
    json["topk_method"] = "noaux_tc";
    json["scoring_func"] = "sigmoid";
    json["norm_topk_prob"] = true;
  });
  EXPECT_EQ(config.moe.route.selection, ExpertSelection::kGroupTopTwo);
  EXPECT_EQ(config.moe.route.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(config.moe.route_bias);
}

TEST(ConfigTest, RoutingThatTheFileLeavesUnsaidIsTheFamilys) {
  const auto unsaid = [](Json& json) {
    json.erase("topk_method");
    json.erase("scoring_func");
  };
  EXPECT_EQ(ParseChanged("deepseek_v3", unsaid).moe.route.selection, kGroupTopTwo);
  EXPECT_EQ(ParseChanged("deepseek_v2_lite", unsaid).moe.route.score, ScoreFunction::kSoftmax);
}

TEST(ConfigTest, EosIsOneTokenOrAListOrNone) {
  const auto eos = [](const Json& value) {
    return ParseChanged("moonlight", [&](Json& json) { json["eos_token_id"] = value; }).eos_tokens;
  };
  EXPECT_EQ(eos(7), std::vector<int32_t>{7});
  EXPECT_EQ(eos({7, 5, 7}), (std::vector<int32_t>{7, 5}));
  EXPECT_EQ(eos(nullptr), std::vector<int32_t>{});
  EXPECT_EQ(RefusalOf("moonlight", "eos_token_id", 163840),
            "config.json: eos_token_id: expected an integer in 0..163839, got 163840");
  EXPECT_EQ(RefusalOf("moonlight", "eos_token_id", {1, -1}),
            "config.json: eos_token_id[1]: expected an integer in 0..163839, got -1");
  EXPECT_EQ(RefusalOf("moonlight", "eos_token_id", std::vector<int>(65, 1)),
            "config.json: eos_token_id: expected at most 64 tokens, got 65");
}

TEST(ConfigTest, AFolderMayHaveAGenerationConfig) {
  const TempDir dir;
  EXPECT_EQ(InvalidArgument([&] { (void)ReadModelConfig(dir.path()); }, dir.path()),
            "DIR/config.json: cannot open: No such file or directory");
  dir.Write("config.json", ReadConfig("kimi_k2").dump());
  EXPECT_EQ(ReadModelConfig(dir.path()).eos_tokens, std::vector<int32_t>{163585});
  dir.Write("generation_config.json", R"({"eos_token_id": 163586, "max_length": 131072})");
  EXPECT_EQ(ReadModelConfig(dir.path()).eos_tokens, (std::vector<int32_t>{163585, 163586}));
  dir.Write("generation_config.json", R"({"eos_token_id": 999999})");
  EXPECT_EQ(InvalidArgument([&] { (void)ReadModelConfig(dir.path()); }, dir.path()),
            "DIR/generation_config.json: eos_token_id: expected an integer in 0..163839, got "
            "999999");
}

TEST(ConfigTest, WhatDecidesAboutTensorsMustBeThere) {
  for (const char* key : {"model_type",
                          "hidden_size",
                          "vocab_size",
                          "max_position_embeddings",
                          "rms_norm_eps",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "v_head_dim",
                          "intermediate_size",
                          "moe_intermediate_size",
                          "first_k_dense_replace",
                          "n_shared_experts",
                          "num_experts_per_tok",
                          "n_group",
                          "topk_group",
                          "norm_topk_prob",
                          "routed_scaling_factor"}) {
    EXPECT_EQ(Refusal("deepseek_v3", [&](Json& json) { json.erase(key); }),
              std::string("config.json: ") + key + ": missing");
  }
  for (const char* key : {"scale_emb", "scale_depth", "dim_model_base", "q_lora_rank"}) {
    EXPECT_EQ(Refusal("minicpm3_4b", [&](Json& json) { json.erase(key); }),
              std::string("config.json: ") + key + ": missing");
  }
  EXPECT_EQ(Refusal("deepseek_v3",
                    [](Json& json) {
                      json.erase("n_routed_experts");
                      json["mlp_layer_types"] = std::vector<std::string>(61, "sparse");
                    }),
            "config.json: n_routed_experts: missing");
  for (const char* key : {"factor", "original_max_position_embeddings", "type"}) {
    EXPECT_EQ(Refusal("deepseek_v3", [&](Json& json) { json["rope_scaling"].erase(key); }),
              std::string("config.json: rope_scaling.") +
                  (std::string_view(key) == "type" ? "rope_type" : key) + ": missing");
  }
}

TEST(ConfigTest, WhatDecidesAboutTensorsMayNotBeNull) {
  for (const char* key : {"hidden_size", "kv_lora_rank", "v_head_dim", "num_experts_per_tok"}) {
    EXPECT_NE(RefusalOf("deepseek_v3", key, nullptr).find(", got null"), std::string::npos) << key;
  }
}

// A key of a file, a value that is refused, and the message without "config.json: ".
struct Refused {
  const char* file;
  const char* key;
  Json value;
  std::string message;
};

TEST(ConfigTest, ValuesOutOfRangeAreRefused) {
  const Refused cases[] = {
      {"deepseek_v3", "hidden_size", 0, "hidden_size: expected an integer in 1..1048576, got 0"},
      {"deepseek_v3", "hidden_size", 7168.0,
       "hidden_size: expected an integer in 1..1048576, got 7168.0"},
      {"deepseek_v3", "hidden_size", "7168",
       "hidden_size: expected an integer in 1..1048576, got \"7168\""},
      {"deepseek_v3", "vocab_size", int64_t{1} << 40,
       "vocab_size: expected an integer in 1..16777216, got 1099511627776"},
      {"deepseek_v3", "num_hidden_layers", 1025,
       "num_hidden_layers: expected an integer in 1..1024, got 1025"},
      {"deepseek_v3", "num_key_value_heads", 8,
       "num_key_value_heads: expected an integer in 128..128, got 8"},
      {"deepseek_v3", "qk_rope_head_dim", 63, "qk_rope_head_dim: expected an even number, got 63"},
      {"deepseek_v3", "qk_rope_head_dim", 4096,
       "qk_rope_head_dim: expected at most 4096 together with kv_lora_rank, got 4096 + 512"},
      {"minicpm3_4b", "num_attention_heads", 41,
       "num_key_value_heads: expected an integer in 41..41, got 40"},
      {"deepseek_v3", "rms_norm_eps", 0.0,
       "rms_norm_eps: expected more than 0 and at most 1, got 0"},
      {"deepseek_v3", "rms_norm_eps", "1e-6", "rms_norm_eps: expected a number, got \"1e-6\""},
      {"deepseek_v3", "tie_word_embeddings", 1,
       "tie_word_embeddings: expected true or false, got 1"},
      {"deepseek_v3", "rope_theta", 1,
       "rope_theta: expected more than 1 and at most 1000000000000000, got 1"},
      {"deepseek_v3", "model_type", 3, "model_type: expected a string, got 3"},
      {"deepseek_v3", "bos_token_id", 129280,
       "bos_token_id: expected an integer in 0..129279, got 129280"},
      {"deepseek_v3", "num_nextn_predict_layers", -1,
       "num_nextn_predict_layers: expected an integer in 0..64, got -1"},
      {"minicpm3_4b", "scale_emb", 0, "scale_emb: expected more than 0 and at most 1000000, got 0"},
  };
  for (const Refused& each : cases) {
    EXPECT_EQ(RefusalOf(each.file, each.key, each.value),
              std::string("config.json: ") + each.message);
  }
}

TEST(ConfigTest, WhatIsNotComputedIsRefused) {
  const Refused cases[] = {
      {"deepseek_v2", "index_topk", 2048,
       "index_topk: expected none: sparse attention of a deepseek_v2 is not known here"},
      {"deepseek_v3", "hidden_act", "gelu", "hidden_act: expected one of \"silu\", got \"gelu\""},
      {"deepseek_v2", "mlp_bias", true, "mlp_bias: expected false, got true"},
      {"glm_4_7_flash", "partial_rotary_factor", 0.5, "partial_rotary_factor: expected 1, got 0.5"},
      {"deepseek_v3", "torch_dtype", "float64",
       "torch_dtype: expected one of \"bfloat16\", \"float16\", \"float32\", got \"float64\""},
      {"deepseek_v3", "dtype", "float16", "torch_dtype: expected the same as config.json: dtype"},
      {"deepseek_v3",
       "quantization_config",
       {{"quant_method", "gptq"}},
       "quantization_config.quant_method: expected one of \"fp8\", got \"gptq\""},
      {"deepseek_v3",
       "quantization_config",
       {{"quant_method", "fp8"}},
       "quantization_config.weight_block_size: missing"},
      {"deepseek_v3",
       "quantization_config",
       {{"quant_method", "fp8"}, {"fmt", "e5m2"}},
       "quantization_config.fmt: expected one of \"e4m3\", got \"e5m2\""},
      {"deepseek_v3",
       "quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {128}}},
       "quantization_config.weight_block_size: expected 2 numbers, got 1"},
      {"deepseek_v3",
       "quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}},
       "quantization_config.weight_block_size[1]: expected an integer in 1..65536, got 0"},
  };
  for (const Refused& each : cases) {
    EXPECT_EQ(RefusalOf(each.file, each.key, each.value),
              std::string("config.json: ") + each.message);
  }
}

TEST(ConfigTest, RoutingThatCannotBeIsRefused) {
  const Refused cases[] = {
      {"deepseek_v3", "topk_method", "greedy",
       "topk_method: expected one of \"noaux_tc\", got \"greedy\""},
      {"deepseek_v2", "topk_method", "random",
       "topk_method: expected one of \"greedy\", \"group_limited_greedy\", \"noaux_tc\", got "
       "\"random\""},
      {"deepseek_v3", "scoring_func", "softmax",
       "scoring_func: expected one of \"sigmoid\", got \"softmax\""},
      {"deepseek_v2", "scoring_func", "sigmoid",
       "scoring_func: expected one of \"softmax\", got \"sigmoid\""},
      {"deepseek_v2", "norm_topk_prob", true,
       "norm_topk_prob: expected false with softmax scores, got true"},
      {"deepseek_v3", "n_group", 7, "n_group: expected a divisor of 256 experts, got 7"},
      {"deepseek_v3", "n_group", 65, "n_group: expected an integer in 1..64, got 65"},
      {"deepseek_v3", "topk_group", 9, "topk_group: expected an integer in 1..8, got 9"},
      {"deepseek_v3", "num_experts_per_tok", 65,
       "num_experts_per_tok: expected an integer in 1..64, got 65"},
      {"deepseek_v2", "n_routed_experts", 8,
       "num_experts_per_tok: expected at most the 3 experts of 3 groups, got 6"},
      {"deepseek_v3", "num_experts_per_tok", 1,
       "norm_topk_prob: expected false with one expert, got true"},
      {"deepseek_v3", "routed_scaling_factor", 0,
       "routed_scaling_factor: expected more than 0 and at most 1000000, got 0"},
      {"deepseek_v3", "num_local_experts", 128,
       "num_local_experts: expected the same as config.json: n_routed_experts"},
  };
  for (const Refused& each : cases) {
    EXPECT_EQ(RefusalOf(each.file, each.key, each.value),
              std::string("config.json: ") + each.message);
  }
  EXPECT_EQ(Refusal("deepseek_v3",
                    [](Json& json) {
                      json["n_routed_experts"] = 8;
                      json["num_experts_per_tok"] = 2;
                    }),
            "config.json: n_group: expected groups of two experts or more, got 8 of 1");
}

// ---- Sparse attention ----

// The numbers of the layers that choose.
std::vector<int32_t> FullLayers(const ModelConfig& config) {
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    if (config.HasIndexer(i)) layers.push_back(i);
  }
  return layers;
}

TEST(ConfigTest, SparseModelsHaveAnIndexer) {
  const ModelConfig v32 = Parse(ReadConfig("deepseek_v32"));
  ASSERT_TRUE(v32.indexer.has_value());
  EXPECT_EQ(v32.indexer->num_heads, 64);
  EXPECT_EQ(v32.indexer->head_dim, 128);
  EXPECT_EQ(v32.indexer->top_k, 2048);
  EXPECT_EQ(v32.indexer->pairs, RopePairs::kHalves);
  EXPECT_EQ(v32.indexer->init_tokens, 0);
  EXPECT_EQ(v32.indexer->local_tokens, 0);
  EXPECT_EQ(v32.indexer->num_full(), 61);
  EXPECT_EQ(v32.rope.pairs, RopePairs::kInterleaved);

  const ModelConfig glm = Parse(ReadConfig("glm_5_2_transformers5"));
  EXPECT_EQ(glm.indexer->num_heads, 32);
  EXPECT_EQ(glm.indexer->pairs, RopePairs::kInterleaved);
  EXPECT_EQ(glm.indexer->num_full(), 21);

  EXPECT_FALSE(Parse(ReadConfig("deepseek_v3")).indexer.has_value());
  const auto v3_with = [](const Json& top_k) {
    return ParseChanged("deepseek_v3", [&](Json& json) {
      json["index_topk"] = top_k;
      json["index_n_heads"] = 4;
      json["index_head_dim"] = 64;
    });
  };
  EXPECT_FALSE(v3_with(nullptr).indexer.has_value());
  EXPECT_EQ(v3_with(512).indexer->top_k, 512);
  EXPECT_EQ(v3_with(512).indexer->pairs, RopePairs::kHalves);
}

TEST(ConfigTest, TheFileSaysHowAnIndexerRotatesAndWhatItAlwaysChooses) {
  const auto parse = [](const char* key, const Json& value) {
    return *ParseChanged("deepseek_v32", [&](Json& json) { json[key] = value; }).indexer;
  };
  EXPECT_EQ(parse("indexer_rope_interleave", true).pairs, RopePairs::kInterleaved);
  EXPECT_EQ(parse("indexer_rope_interleave", false).pairs, RopePairs::kHalves);
  EXPECT_EQ(parse("index_init_tokens", 4).init_tokens, 4);
  EXPECT_EQ(parse("index_local_tokens", 64).local_tokens, 64);
  for (const char* type : {"deepseek_sparse_attention", "indexed_attention"}) {
    EXPECT_EQ(parse("layer_types", std::vector<std::string>(61, type)).top_k, 2048) << type;
  }
}

TEST(ConfigTest, LayersThatChooseAreSpelledInThreeWays) {
  std::vector<int32_t> every_fourth = {0, 1};
  for (int32_t i = 2; i < 78; i += 4) every_fourth.push_back(i);
  const auto change = [](const Change& spell) {
    return FullLayers(ParseChanged("glm_5_2_transformers5", [&](Json& json) {
      json.erase("indexer_types");
      spell(json);
    }));
  };
  EXPECT_EQ(FullLayers(Parse(ReadConfig("glm_5_2_transformers5"))), every_fourth);
  EXPECT_EQ(change([](Json& json) {
              json["index_topk_freq"] = 4;
              json["index_skip_topk_offset"] = 3;
            }),
            every_fourth);
  std::string letters(78, 'S');
  for (const int32_t i : every_fourth) letters[static_cast<size_t>(i)] = 'F';
  EXPECT_EQ(change([&](Json& json) { json["index_topk_pattern"] = letters; }), every_fourth);
  // Words come before letters, and letters before the frequency.
  EXPECT_EQ(change([&](Json& json) {
              json["index_topk_pattern"] = letters;
              json["index_topk_freq"] = 7;
            }),
            every_fourth);
  EXPECT_EQ(change([&](Json& json) {
              json["indexer_types"] = std::vector<std::string>(78, "full");
              json["index_topk_pattern"] = letters;
            }).size(),
            78u);
  // Without an offset the second layer is the first of a period.
  EXPECT_EQ(change([](Json& json) { json["index_topk_freq"] = 26; }),
            (std::vector<int32_t>{0, 1, 27, 53}));
  EXPECT_EQ(change([](Json&) {}).size(), 78u);
}

TEST(ConfigTest, IndexersThatCannotBeAreRefused) {
  const std::string words_of_60(60, 'F');
  const Refused cases[] = {
      {"deepseek_v32", "q_lora_rank", nullptr,
       "q_lora_rank: expected a number: the indexer's queries are made of the latent of the "
       "queries"},
      {"deepseek_v32", "index_topk", 0, "index_topk: expected an integer in 1..1073741824, got 0"},
      {"deepseek_v32", "index_n_heads", 0, "index_n_heads: expected an integer in 1..4096, got 0"},
      {"deepseek_v32", "index_head_dim", 0,
       "index_head_dim: expected an integer in 1..4096, got 0"},
      {"deepseek_v32", "index_head_dim", 32,
       "index_head_dim: expected at least qk_rope_head_dim, whose values are rotated, 64, got 32"},
      {"deepseek_v32", "index_topk_pattern", words_of_60,
       "index_topk_pattern: expected one for each of 61 layers, got 60"},
      {"deepseek_v32", "index_topk_pattern", "S" + words_of_60,
       "index_topk_pattern: expected a first layer that chooses keys, there being none before it, "
       "got one that shares"},
      {"deepseek_v32", "index_topk_pattern", words_of_60 + "X",
       "index_topk_pattern: expected letters F and S, got \"" + words_of_60 + "X\""},
      {"deepseek_v32",
       "indexer_types",
       {"full"},
       "indexer_types: expected one for each of 61 layers, got 1"},
      {"deepseek_v32", "indexer_types", std::vector<std::string>(61, "shared"),
       "indexer_types: expected a first layer that chooses keys, there being none before it, got "
       "one that shares"},
      {"deepseek_v32", "indexer_types", std::vector<std::string>(61, "half"),
       "indexer_types[0]: expected one of \"full\", \"shared\", got \"half\""},
      {"deepseek_v32", "index_topk_freq", 0,
       "index_topk_freq: expected an integer in 1..1024, got 0"},
      {"deepseek_v32", "cli_factor", 2, "cli_factor: expected an integer in 0..1, got 2"},
      {"deepseek_v32", "index_k_norm_type", "rms",
       "index_k_norm_type: expected one of \"layer\", got \"rms\""},
      {"deepseek_v32", "index_local_tokens", 2049,
       "index_topk: expected at least index_init_tokens + index_local_tokens, 0 + 2049, got 2048"},
      {"deepseek_v32",
       "layer_types",
       {"indexed_attention"},
       "layer_types: expected 61 names, got 1"},
      {"deepseek_v32", "layer_types", std::vector<std::string>(61, "full_attention"),
       "layer_types[0]: expected one of \"deepseek_sparse_attention\", \"indexed_attention\", got "
       "\"full_attention\""},
  };
  for (const Refused& each : cases) {
    EXPECT_EQ(RefusalOf(each.file, each.key, each.value), "config.json: " + each.message);
  }
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) {
    EXPECT_EQ(Refusal("deepseek_v32", [&](Json& json) { json.erase(key); }),
              std::string("config.json: ") + key + ": missing");
  }
  EXPECT_EQ(Refusal("deepseek_v32",
                    [](Json& json) {
                      json["index_topk_freq"] = 2;
                      json["index_skip_topk_offset"] = 0;
                    }),
            "config.json: index_skip_topk_offset: expected a first layer that chooses keys, there "
            "being none before it, got one that shares");
}

TEST(ConfigTest, KinThatAttendInAnotherWayAreRefusedByWhatTheyAre) {
  const auto refusal = [](const char* type, const char* key, const Json& value) {
    return Refusal("deepseek_v32", [&](Json& json) {
      json["model_type"] = type;
      json[key] = value;
    });
  };
  EXPECT_EQ(refusal("deepseek_v4", "compress_ratios", {0, 4, 128}),
            "config.json: compress_ratios: DeepSeek-V4's compressed attention is not served");
  EXPECT_EQ(refusal("glm5_next", "index_kpool", 16),
            "config.json: index_kpool: GLM-5.3-Flash, whose indexer chooses pools of keys, is not "
            "served");
  EXPECT_EQ(refusal("glm_moe_dsa", "layer_types", {"indexed_attention", "linear_attention"}),
            "config.json: layer_types[1]: a model with layers of linear attention (GLM-5.3-Flash, "
            "Kimi-Linear) is not served");
}

TEST(ConfigTest, LayersThatCannotBeAreRefused) {
  EXPECT_EQ(RefusalOf("moonlight", "mlp_layer_types", {"dense"}),
            "config.json: mlp_layer_types: expected 27 names, got 1");
  std::vector<std::string> types(27, "sparse");
  EXPECT_EQ(RefusalOf("moonlight", "mlp_layer_types", types),
            "config.json: first_k_dense_replace: expected what mlp_layer_types says of layer 0, "
            "got 1");
  types[2] = "wide";
  EXPECT_EQ(RefusalOf("moonlight", "mlp_layer_types", types),
            "config.json: mlp_layer_types[2]: expected one of \"dense\", \"sparse\", got "
            "\"wide\"");
  EXPECT_EQ(RefusalOf("moonlight", "moe_layer_freq", 0),
            "config.json: moe_layer_freq: expected an integer in 1..1024, got 0");
}

TEST(ConfigTest, RopeScalingThatCannotBeIsRefused) {
  const auto refusal = [](const char* file, const char* key, const Json& value) {
    return Refusal(file, [&](Json& json) { json["rope_scaling"][key] = value; });
  };
  EXPECT_EQ(refusal("deepseek_v3", "type", "linear"),
            "config.json: rope_scaling.type: expected one of \"default\", \"yarn\", \"longrope\", "
            "got \"linear\"");
  EXPECT_EQ(refusal("deepseek_v3", "rope_type", "default"),
            "config.json: rope_scaling.type: expected the same as config.json: "
            "rope_scaling.rope_type");
  EXPECT_EQ(refusal("deepseek_v3", "factor", 0),
            "config.json: rope_scaling.factor: expected more than 0 and at most 1000000, got 0");
  EXPECT_EQ(
      refusal("deepseek_v3", "beta_slow", -1),
      "config.json: rope_scaling.beta_slow: expected more than 0 and at most 1000000, got -1");
  EXPECT_EQ(refusal("deepseek_v3", "beta_slow", 33),
            "config.json: rope_scaling: expected a beta_fast of at least beta_slow, got 32 and 33");
  EXPECT_EQ(refusal("deepseek_v3", "mscale", nullptr),
            "config.json: rope_scaling: expected both mscale and mscale_all_dim or neither, got "
            "one");
  EXPECT_EQ(refusal("deepseek_v3", "rope_theta", 20000),
            "config.json: rope_scaling.rope_theta: expected the same as config.json: rope_theta, "
            "got 20000");
  EXPECT_EQ(refusal("deepseek_v3", "partial_rotary_factor", 0.25),
            "config.json: rope_scaling.partial_rotary_factor: expected 1, got 0.25");
  EXPECT_EQ(refusal("minicpm3_4b", "short_factor", {1.0, 2.0}),
            "config.json: rope_scaling.short_factor: expected 16 numbers, got 2");
  EXPECT_EQ(refusal("minicpm3_4b", "long_factor", {1.0, 0.0}),
            "config.json: rope_scaling.long_factor[1]: expected more than 0 and at most 1000000, "
            "got 0");
  EXPECT_EQ(RefusalOf("deepseek_v3", "rope_scaling", "yarn"),
            "config.json: rope_scaling: expected an object, got \"yarn\"");
  EXPECT_EQ(RefusalOf("deepseek_v3", "rope_parameters", {{"rope_type", "default"}}),
            "config.json: rope_scaling: expected the same as config.json: rope_parameters");
}

TEST(ConfigTest, MiniCpm3HasAValueDimOrHeadsThatDivideItsWidth) {
  const auto with_heads = [](Json& json) {
    json["num_attention_heads"] = json["num_key_value_heads"] = 39;
  };
  EXPECT_EQ(Refusal("minicpm3_4b", with_heads),
            "config.json: num_attention_heads: expected a divisor of hidden_size 2560, there being "
            "no v_head_dim, got 39");
  EXPECT_EQ(ParseChanged("minicpm3_4b",
                         [&](Json& json) {
                           with_heads(json);
                           json["v_head_dim"] = 48;
                         })
                .value_dim,
            48);
}

TEST(ConfigTest, TheRestOfAFileIsIgnored) {
  EXPECT_NO_THROW((void)ParseChanged("deepseek_v3", [](Json& json) {
    json["ep_size"] = "many";
    json["attention_dropout"] = 0.5;
    json["head_dim"] = 64;
    json["something"] = {{"new", {1, 2, 3}}};
  }));
}

// A.X-K1's files have a norm after dense MLPs too, which nothing computes.
bool IsNormAfterDenseMlp(const std::string& name, const ModelConfig& config) {
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const std::string norm = "model.layers." + std::to_string(i) + ".post_mlp_layernorm.weight";
    if (name == norm) return config.layers[static_cast<size_t>(i)] == LayerKind::kDense;
  }
  return false;
}

// Elements in the files of a folder, of what CountParameters counts.
int64_t CountElements(const std::filesystem::path& folder, const ModelConfig& config) {
  const std::string drafts = "model.layers." + std::to_string(config.num_layers()) + ".";
  const TensorSet tensors = TensorSet::Open(folder);
  int64_t total = 0;
  for (const StoredTensor& tensor : tensors.tensors()) {
    if (tensor.name.starts_with(drafts) || tensor.name.ends_with("_scale_inv")) continue;
    if (IsNormAfterDenseMlp(tensor.name, config)) continue;
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    total += elements;
  }
  return total;
}

TEST(ConfigTest, ParametersAreThoseInTheFiles) {
  int num_folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_HF_FIXTURES)) {
    SCOPED_TRACE(entry.path().filename().string());
    const ModelConfig config = ReadModelConfig(entry.path());
    EXPECT_EQ(CountParameters(config).total, CountElements(entry.path(), config));
    ++num_folders;
  }
  EXPECT_GE(num_folders, 20);
}

}  // namespace
}  // namespace quire
