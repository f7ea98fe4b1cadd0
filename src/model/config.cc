#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "attn/kv_layout.h"
#include "base/error.h"

namespace quire {
namespace {

// Far above every model there is, and low enough that no count of parameters overflows.
constexpr int64_t kMaxLayers = 1 << 10;
constexpr int64_t kMaxWidth = 1 << 20;  // of hidden states and of an MLP
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 30;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxSharedExperts = 1 << 10;
constexpr int64_t kMaxDraftLayers = 64;
constexpr int64_t kMaxBlock = 1 << 16;
constexpr size_t kMaxEosTokens = 64;
constexpr double kMaxScale = 1e6;

// Whose defaults hold for what a file leaves unsaid.
enum class Lineage { kDeepseekV2, kDeepseekV3, kMiniCpm3 };

// Whether models of a family have sparse attention: if they have an index_topk, or all of them.
enum class Sparsity { kNever, kByTopK, kAlways };

// What no file of a family says, or not every one, and its lineage does not decide.
struct Particulars {
  bool tied_embeddings = false;  // where the file has no tie_word_embeddings
  bool post_mlp_norm = false;
  Sparsity sparsity = Sparsity::kNever;
  RopePairs indexer_pairs = RopePairs::kHalves;  // where the file has no indexer_rope_interleave
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  Lineage lineage;
  Particulars particulars = {};
};

constexpr std::array kFamilies = {
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", Lineage::kDeepseekV2},
    Family{"deepseek_v3",
           "DeepseekV3ForCausalLM",
           Lineage::kDeepseekV3,
           {.sparsity = Sparsity::kByTopK}},
    Family{"kimi_k2", "DeepseekV3ForCausalLM", Lineage::kDeepseekV3},
    Family{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", Lineage::kDeepseekV3},
    Family{"minicpm3", "MiniCPM3ForCausalLM", Lineage::kMiniCpm3, {.tied_embeddings = true}},
    Family{"youtu", "YoutuForCausalLM", Lineage::kDeepseekV3, {.tied_embeddings = true}},
    Family{"axk1", "AXK1ForCausalLM", Lineage::kDeepseekV3, {.post_mlp_norm = true}},
    Family{"deepseek_v32",
           "DeepseekV32ForCausalLM",
           Lineage::kDeepseekV3,
           {.sparsity = Sparsity::kAlways}},
    Family{"glm_moe_dsa",
           "GlmMoeDsaForCausalLM",
           Lineage::kDeepseekV3,
           {.sparsity = Sparsity::kAlways, .indexer_pairs = RopePairs::kInterleaved}},
};

// Keys that transformers 5 and 4, or two families, spell differently.
template <size_t n>
using Spellings = std::array<std::string_view, n>;
constexpr Spellings<2> kDtype = {"dtype", "torch_dtype"};
constexpr Spellings<2> kRope = {"rope_parameters", "rope_scaling"};
constexpr Spellings<2> kRopeType = {"rope_type", "type"};
constexpr Spellings<3> kNumExperts = {"n_routed_experts", "num_local_experts", "num_experts"};
constexpr Spellings<2> kNumDraftLayers = {"num_nextn_predict_layers", "num_mtp_layers"};

// The value under one of the spellings. Two that differ are refused.
template <size_t n>
std::optional<JsonRef> FindAny(const JsonRef& config, const Spellings<n>& spellings) {
  std::optional<JsonRef> found;
  for (const std::string_view key : spellings) {
    const std::optional<JsonRef> value = config.Find(key);
    if (!value) continue;
    Require(!found || found->value() == value->value(), "{}: expected the same as {}",
            value->where(), found ? found->where() : "");
    if (!found) found = value;
  }
  return found;
}

template <size_t n>
JsonRef AtAny(const JsonRef& config, const Spellings<n>& spellings) {
  const std::optional<JsonRef> found = FindAny(config, spellings);
  return found ? *found : config.At(spellings.front());
}

// The value of a key that must be there, but may be null.
std::optional<JsonRef> AtOrNull(const JsonRef& config, std::string_view key) {
  const JsonRef value = config.At(key);
  return value.value().is_null() ? std::nullopt : std::optional(value);
}

int32_t Size(const JsonRef& value, int64_t max) { return static_cast<int32_t>(value.Int(1, max)); }

int32_t Size(const JsonRef& config, std::string_view key, int64_t max) {
  return Size(config.At(key), max);
}

bool BoolOr(const JsonRef& config, std::string_view key, bool otherwise) {
  const std::optional<JsonRef> value = config.Find(key);
  return value ? value->Bool() : otherwise;
}

double NumberAbove(double limit, const JsonRef& value, double max = kMaxScale) {
  const double number = value.Number();
  Require(number > limit && number <= max, "{}: expected more than {} and at most {}, got {}",
          value.where(), limit, max, number);
  return number;
}

double NumberAboveOr(double limit, const JsonRef& config, std::string_view key, double otherwise) {
  const std::optional<JsonRef> value = config.Find(key);
  return value ? NumberAbove(limit, *value) : otherwise;
}

// The part that is a language model: the file itself, unless it keeps that in its text_config.
JsonRef LanguageModel(const JsonRef& file) {
  const std::optional<JsonRef> text = file.Find("text_config");
  return text && !file.Find("kv_lora_rank") ? *text : file;
}

bool HasArchitecture(const JsonRef& model, std::string_view name) {
  const std::optional<JsonRef> names = model.Find("architectures");
  if (!names) return false;
  const std::vector<JsonRef> all = names->Array();
  return std::any_of(all.begin(), all.end(),
                     [&](const JsonRef& each) { return each.String() == name; });
}

// The rule that the header states.
Family FamilyOf(const JsonRef& model) {
  const std::string type = model.At("model_type").String();
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return family;
  }
  for (const Family& family : kFamilies) {
    if (HasArchitecture(model, family.architecture)) return family;
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.model_type);
  throw Error(ErrorCode::kInvalidArgument,
              "{}: expected one of \"{}\", or an architecture of theirs, got {}; {}",
              model.At("model_type").where(), fmt::join(known, "\", \""), QuoteForMessage(type),
              model.Find("kv_lora_rank")
                  ? "it has the fields of latent attention, but what it computes besides is not "
                    "known here: docs/add-a-model.md says how a family is added"
                  : "it lacks the fields of latent attention, kv_lora_rank first");
}

// Models that are kin of those here, but attend in another way. Their other keys may look like a family
// of ours, so these are looked at first.
void RefuseOtherAttention(const JsonRef& model) {
  const auto refuse = [](const JsonRef& key, const char* what) {
    throw Error(ErrorCode::kInvalidArgument, "{}: {} is not served", key.where(), what);
  };
  for (const std::string_view key : {"compress_ratios", "compress_rates"}) {
    if (const auto found = model.Find(key)) refuse(*found, "DeepSeek-V4's compressed attention");
  }
  if (const auto pool = model.Find("index_kpool")) {
    refuse(*pool, "GLM-5.3-Flash, whose indexer chooses pools of keys,");
  }
  const auto types = model.Find("layer_types");
  if (!types) return;
  for (const JsonRef& type : types->Array()) {
    if (type.String() == "linear_attention") {
      refuse(type, "a model with layers of linear attention (GLM-5.3-Flash, Kimi-Linear)");
    }
  }
}

// Things that some model has and that nothing here computes.
void RefuseOtherModels(const JsonRef& model) {
  if (const auto activation = model.Find("hidden_act")) (void)activation->OneOf({"silu"});
  if (const auto bias = model.Find("mlp_bias")) {
    Require(!bias->Bool(), "{}: expected false, got true", bias->where());
  }
}

void ReadAttention(const JsonRef& model, Lineage lineage, ModelConfig& config) {
  config.latent_dim = Size(model, "kv_lora_rank", kMaxRowValues);
  config.nope_dim = Size(model, "qk_nope_head_dim", kMaxRowValues);
  const JsonRef rope = model.At("qk_rope_head_dim");
  config.rope_dim = Size(rope, kMaxRowValues);
  Require(config.rope_dim % 2 == 0, "{}: expected an even number, got {}", rope.where(),
          config.rope_dim);
  Require(config.latent_dim + config.rope_dim <= kMaxRowValues,
          "{}: expected at most {} together with kv_lora_rank, got {} + {}", rope.where(),
          kMaxRowValues, config.rope_dim, config.latent_dim);

  const JsonRef heads = model.At("num_attention_heads");
  config.num_heads = Size(heads, kMaxHeads);
  if (const auto kv_heads = model.Find("num_key_value_heads")) {
    (void)kv_heads->Int(config.num_heads, config.num_heads);  // every head has keys of its own
  }
  if (lineage == Lineage::kMiniCpm3 && !model.Find("v_head_dim")) {
    Require(config.hidden_size % config.num_heads == 0,
            "{}: expected a divisor of hidden_size {}, there being no v_head_dim, got {}",
            heads.where(), config.hidden_size, config.num_heads);
    config.value_dim = static_cast<int32_t>(config.hidden_size / config.num_heads);
  } else {
    config.value_dim = Size(model, "v_head_dim", kMaxRowValues);
  }
  const std::optional<JsonRef> q_rank = AtOrNull(model, "q_lora_rank");
  config.q_lora_rank = q_rank ? Size(*q_rank, kMaxRank) : 0;
  config.attention_bias = BoolOr(model, "attention_bias", false);
}

RopePairs ReadPairs(const JsonRef& model, Lineage lineage) {
  const bool by_default = lineage != Lineage::kMiniCpm3;
  const std::optional<JsonRef> interleave = model.Find("rope_interleave");
  const bool interleaved = interleave ? interleave->Bool() : by_default;
  // Only the code of DeepSeek-V3 and its kin looks at the key.
  Require(interleaved == by_default || lineage == Lineage::kDeepseekV3,
          "{}: expected {} of this model, got {}", interleave ? interleave->where() : "",
          by_default, interleaved);
  return interleaved ? RopePairs::kInterleaved : RopePairs::kHalves;
}

void ReadYarn(const JsonRef& scaling, RopeConfig& rope) {
  rope.factor = NumberAbove(0.0, scaling.At("factor"));
  rope.beta_fast = NumberAboveOr(0.0, scaling, "beta_fast", 32.0);
  rope.beta_slow = NumberAboveOr(0.0, scaling, "beta_slow", 1.0);
  Require(rope.beta_fast >= rope.beta_slow,
          "{}: expected a beta_fast of at least beta_slow, got {} and {}", scaling.where(),
          rope.beta_fast, rope.beta_slow);
  rope.truncate = BoolOr(scaling, "truncate", true);
  // Of one mscale alone DeepSeek's code and transformers make different things.
  const auto mscale = scaling.Find("mscale");
  const auto mscale_all_dim = scaling.Find("mscale_all_dim");
  Require(mscale.has_value() == mscale_all_dim.has_value(),
          "{}: expected both mscale and mscale_all_dim or neither, got one", scaling.where());
  // 1 and 0 say what neither says. Of 0 and another mscale they make different things again.
  if (mscale && !(mscale->Number() == 1.0 && mscale_all_dim->Number() == 0.0)) {
    rope.mscale = NumberAbove(0.0, *mscale);
    rope.mscale_all_dim = NumberAbove(0.0, *mscale_all_dim);
  }
}

std::vector<double> ReadFactors(const JsonRef& factors, int32_t rope_dim) {
  std::vector<double> values;
  for (const JsonRef& factor : factors.Array()) values.push_back(NumberAbove(0.0, factor));
  Require(std::ssize(values) == rope_dim / 2, "{}: expected {} numbers, got {}", factors.where(),
          rope_dim / 2, values.size());
  return values;
}

void ReadLongRope(const JsonRef& scaling, const ModelConfig& config, RopeConfig& rope) {
  rope.short_factor = ReadFactors(scaling.At("short_factor"), config.rope_dim);
  rope.long_factor = ReadFactors(scaling.At("long_factor"), config.rope_dim);
  const double growth =
      static_cast<double>(config.max_context) / static_cast<double>(rope.original_context);
  rope.factor = NumberAboveOr(0.0, scaling, "factor", growth);
}

void RequireWholeRotary(const JsonRef& config) {
  if (const auto part = config.Find("partial_rotary_factor")) {
    Require(part->Number() == 1.0, "{}: expected 1, got {}", part->where(), part->Number());
  }
}

// transformers 4 has rope_theta and, beside it, rope_scaling; 5 has all of it in rope_parameters.
RopeConfig ReadRope(const JsonRef& model, Lineage lineage, const ModelConfig& config) {
  RopeConfig rope{.pairs = ReadPairs(model, lineage)};
  RequireWholeRotary(model);
  const std::optional<JsonRef> outer_theta = model.Find("rope_theta");
  if (outer_theta) rope.theta = NumberAbove(1.0, *outer_theta, 1e15);
  const std::optional<JsonRef> scaling = FindAny(model, kRope);
  if (!scaling) return rope;

  RequireWholeRotary(*scaling);
  if (const auto theta = scaling->Find("rope_theta")) {
    rope.theta = NumberAbove(1.0, *theta, 1e15);
    Require(!outer_theta || outer_theta->Number() == rope.theta,
            "{}: expected the same as {}, got {}", theta->where(),
            outer_theta ? outer_theta->where() : "", rope.theta);
  }
  const bool has_type = scaling->Find("factor") || FindAny(*scaling, kRopeType);
  const std::string type =
      has_type ? AtAny(*scaling, kRopeType).OneOf({"default", "yarn", "longrope"}) : "default";
  if (type == "default") return rope;

  rope.original_context = scaling->At("original_max_position_embeddings").Int(2, kMaxContext);
  if (const auto factor = scaling->Find("attention_factor")) {
    rope.attention_factor = NumberAbove(0.0, *factor);
  }
  rope.scaling = type == "yarn" ? RopeScaling::kYarn : RopeScaling::kLongRope;
  if (rope.scaling == RopeScaling::kYarn) {
    ReadYarn(*scaling, rope);
  } else {
    ReadLongRope(*scaling, config, rope);
  }
  return rope;
}

// Layers by a list of names, or by the number of dense ones that come first.
std::vector<LayerKind> ReadLayers(const JsonRef& model) {
  const int32_t num_layers = Size(model, "num_hidden_layers", kMaxLayers);
  std::vector<LayerKind> layers(static_cast<size_t>(num_layers), LayerKind::kDense);
  const auto types = model.Find("mlp_layer_types");
  const bool has_experts = FindAny(model, kNumExperts).has_value();
  if (types) {
    const std::vector<JsonRef> names = types->Array();
    Require(names.size() == layers.size(), "{}: expected {} names, got {}", types->where(),
            layers.size(), names.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool is_dense = names[i].OneOf({"dense", "sparse"}) == "dense";
      layers[i] = is_dense ? LayerKind::kDense : LayerKind::kMoe;
    }
  }
  if (!has_experts || (types && !model.Find("first_k_dense_replace"))) return layers;

  const JsonRef first_moe = model.At("first_k_dense_replace");
  const int64_t num_dense = first_moe.Int(0, kMaxLayers);
  const auto frequency = model.Find("moe_layer_freq");
  const int64_t every = frequency ? frequency->Int(1, kMaxLayers) : 1;
  for (int32_t i = 0; i < num_layers; ++i) {
    const LayerKind kind = i >= num_dense && i % every == 0 ? LayerKind::kMoe : LayerKind::kDense;
    LayerKind& layer = layers[static_cast<size_t>(i)];
    Require(!types || layer == kind, "{}: expected what mlp_layer_types says of layer {}, got {}",
            first_moe.where(), i, num_dense);
    layer = kind;
  }
  return layers;
}

// ---- Sparse attention ----

// Which layers choose: by a list of words, or of letters, or every index_topk_freq-th.
std::vector<IndexerKind> ReadIndexerLayers(const JsonRef& model, size_t num_layers) {
  std::vector<IndexerKind> layers(num_layers, IndexerKind::kFull);
  const auto require_length = [&](const JsonRef& list, size_t length) {
    Require(length == num_layers, "{}: expected one for each of {} layers, got {}", list.where(),
            num_layers, length);
  };
  const auto types = model.Find("indexer_types");
  const auto pattern = model.Find("index_topk_pattern");
  const auto factor = model.Find("cli_factor");  // an older way to say index_topk_freq
  if (factor) (void)factor->Int(0, 1);
  if (types) {
    const std::vector<JsonRef> words = types->Array();
    require_length(*types, words.size());
    for (size_t i = 0; i < num_layers; ++i) {
      const bool is_full = words[i].OneOf({"full", "shared"}) == "full";
      layers[i] = is_full ? IndexerKind::kFull : IndexerKind::kShared;
    }
  } else if (pattern) {
    const std::string letters = pattern->String();
    require_length(*pattern, letters.size());
    for (size_t i = 0; i < num_layers; ++i) {
      Require(letters[i] == 'F' || letters[i] == 'S', "{}: expected letters F and S, got {}",
              pattern->where(), QuoteForMessage(letters));
      layers[i] = letters[i] == 'F' ? IndexerKind::kFull : IndexerKind::kShared;
    }
  } else {
    const auto frequency = model.Find("index_topk_freq");
    const auto first = model.Find("index_skip_topk_offset");
    const int64_t every = frequency ? frequency->Int(1, kMaxLayers) : 1;
    const int64_t offset = first ? first->Int(0, kMaxLayers) : 2;
    for (size_t i = 0; i < num_layers; ++i) {
      const int64_t number = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0);
      layers[i] = number % every == 0 ? IndexerKind::kFull : IndexerKind::kShared;
    }
  }
  if (layers.front() != IndexerKind::kFull) {
    const JsonRef& list = types ? *types : pattern ? *pattern : model.At("index_skip_topk_offset");
    throw Error(ErrorCode::kInvalidArgument,
                "{}: expected a first layer that chooses keys, there being none before it, got one "
                "that shares",
                list.where());
  }
  return layers;
}

// That every layer's attention is the sparse one, as far as the file says.
void CheckLayerTypes(const JsonRef& model, size_t num_layers) {
  const auto types = model.Find("layer_types");
  if (!types) return;
  const std::vector<JsonRef> words = types->Array();
  Require(words.size() == num_layers, "{}: expected {} names, got {}", types->where(), num_layers,
          words.size());
  for (const JsonRef& word : words) {
    (void)word.OneOf({"deepseek_sparse_attention", "indexed_attention"});
  }
}

std::optional<IndexerConfig> ReadIndexer(const JsonRef& model, const Family& family,
                                         const ModelConfig& config) {
  const std::optional<JsonRef> given = model.Find("index_topk");
  const Sparsity sparsity = family.particulars.sparsity;
  if (sparsity == Sparsity::kNever) {
    Require(!given, "{}: expected none: sparse attention of a {} is not known here",
            given ? given->where() : "", family.model_type);
    return std::nullopt;
  }
  if (sparsity == Sparsity::kByTopK && !given) return std::nullopt;

  IndexerConfig indexer;
  indexer.top_k = Size(model, "index_topk", kMaxContext);
  indexer.num_heads = Size(model, "index_n_heads", kMaxHeads);
  const JsonRef dim = model.At("index_head_dim");
  indexer.head_dim = Size(dim, kMaxRowValues);
  Require(indexer.head_dim >= config.rope_dim,
          "{}: expected at least qk_rope_head_dim, whose values are rotated, {}, got {}",
          dim.where(), config.rope_dim, indexer.head_dim);
  Require(config.q_lora_rank > 0,
          "{}: expected a number: the indexer's queries are made of the latent of the queries",
          model.At("q_lora_rank").where());
  const bool is_interleaved = BoolOr(model, "indexer_rope_interleave",
                                     family.particulars.indexer_pairs == RopePairs::kInterleaved);
  indexer.pairs = is_interleaved ? RopePairs::kInterleaved : RopePairs::kHalves;
  const auto forced = [&](std::string_view key) {
    const auto tokens = model.Find(key);
    return tokens ? static_cast<int32_t>(tokens->Int(0, kMaxContext)) : 0;
  };
  indexer.init_tokens = forced("index_init_tokens");
  indexer.local_tokens = forced("index_local_tokens");
  Require(int64_t{indexer.init_tokens} + indexer.local_tokens <= indexer.top_k,
          "{}: expected at least index_init_tokens + index_local_tokens, {} + {}, got {}",
          model.At("index_topk").where(), indexer.init_tokens, indexer.local_tokens, indexer.top_k);
  if (const auto norm = model.Find("index_k_norm_type")) (void)norm->OneOf({"layer"});
  indexer.layers = ReadIndexerLayers(model, config.layers.size());
  CheckLayerTypes(model, config.layers.size());
  return indexer;
}

enum class TopkMethod { kGreedy, kGroupLimitedGreedy, kNoauxTc };

TopkMethod ReadTopkMethod(const JsonRef& model, Lineage lineage) {
  const bool is_v3 = lineage == Lineage::kDeepseekV3;
  const auto method = model.Find("topk_method");
  if (!method) return is_v3 ? TopkMethod::kNoauxTc : TopkMethod::kGreedy;
  // V3's code knows its own method only; DeepSeek-VL2 is a deepseek_v2 that has it too.
  const std::string name = is_v3 ? method->OneOf({"noaux_tc"})
                                 : method->OneOf({"greedy", "group_limited_greedy", "noaux_tc"});
  if (name == "noaux_tc") return TopkMethod::kNoauxTc;
  return name == "greedy" ? TopkMethod::kGreedy : TopkMethod::kGroupLimitedGreedy;
}

void ReadGroups(const JsonRef& model, TopkMethod method, RouteShape& route) {
  const JsonRef groups = model.At("n_group");
  route.num_groups = Size(groups, kMaxExpertGroups);
  Require(route.num_experts % route.num_groups == 0, "{}: expected a divisor of {} experts, got {}",
          groups.where(), route.num_experts, route.num_groups);
  route.top_groups = Size(model, "topk_group", route.num_groups);
  if (route.num_groups == 1) return;  // nothing to choose from: as greedy

  const bool by_two = method == TopkMethod::kNoauxTc;
  route.selection = by_two ? ExpertSelection::kGroupTopTwo : ExpertSelection::kGroupMax;
  const int32_t group_size = route.num_experts / route.num_groups;
  Require(!by_two || group_size >= 2, "{}: expected groups of two experts or more, got {} of {}",
          groups.where(), route.num_groups, group_size);
  Require(route.top_k <= route.top_groups * group_size,
          "{}: expected at most the {} experts of {} groups, got {}",
          model.At("num_experts_per_tok").where(), route.top_groups * group_size, route.top_groups,
          route.top_k);
}

// Which experts a token goes to, with which weights. Every method has its way of scoring.
RouteShape ReadRoute(const JsonRef& model, Lineage lineage) {
  const TopkMethod method = ReadTopkMethod(model, lineage);
  const bool is_sigmoid = method == TopkMethod::kNoauxTc;
  if (const auto score = model.Find("scoring_func")) {
    (void)score->OneOf({is_sigmoid ? "sigmoid" : "softmax"});
  }
  RouteShape route;
  route.num_experts = Size(AtAny(model, kNumExperts), kMaxExperts);
  route.top_k = Size(model, "num_experts_per_tok", std::min(kMaxTopK, route.num_experts));
  route.score = is_sigmoid ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  if (method != TopkMethod::kGreedy) ReadGroups(model, method, route);
  route.scale = static_cast<float>(NumberAbove(0.0, model.At("routed_scaling_factor")));

  // With softmax, DeepSeek-V2's code drops the factor and transformers drops the norm; of a single
  // expert's weight, DeepSeek-V3's code takes no norm and transformers does.
  const JsonRef norm = model.At("norm_topk_prob");
  route.normalize = norm.Bool();
  Require(!route.normalize || is_sigmoid, "{}: expected false with softmax scores, got true",
          norm.where());
  Require(!route.normalize || route.top_k > 1, "{}: expected false with one expert, got true",
          norm.where());
  return route;
}

MoeConfig ReadMoe(const JsonRef& model, const Family& family) {
  MoeConfig moe;
  moe.route = ReadRoute(model, family.lineage);
  moe.route_bias = moe.route.score == ScoreFunction::kSigmoid;
  moe.post_mlp_norm = family.particulars.post_mlp_norm;
  moe.expert_width = Size(model, "moe_intermediate_size", kMaxWidth);
  if (const auto shared = AtOrNull(model, "n_shared_experts")) {
    moe.shared_width = moe.expert_width * shared->Int(0, kMaxSharedExperts);
  }
  return moe;
}

std::optional<BlockQuantization> ReadQuantization(const JsonRef& config) {
  const auto quantization = config.Find("quantization_config");
  if (!quantization) return std::nullopt;
  (void)quantization->At("quant_method").OneOf({"fp8"});
  if (const auto format = quantization->Find("fmt")) (void)format->OneOf({"e4m3"});
  if (const auto scheme = quantization->Find("activation_scheme")) {
    (void)scheme->OneOf({"dynamic"});
  }
  const JsonRef block = quantization->At("weight_block_size");
  const std::vector<JsonRef> extents = block.Array();
  Require(extents.size() == 2, "{}: expected 2 numbers, got {}", block.where(), extents.size());
  return BlockQuantization{.rows = Size(extents[0], kMaxBlock),
                           .columns = Size(extents[1], kMaxBlock)};
}

void ReadScalings(const JsonRef& model, ModelConfig& config) {
  config.embedding_scale = NumberAbove(0.0, model.At("scale_emb"));
  if (const auto depth = AtOrNull(model, "scale_depth")) {
    config.residual_scale = NumberAbove(0.0, *depth) / std::sqrt(config.num_layers());
  }
  if (const auto base = AtOrNull(model, "dim_model_base")) {
    config.logit_scale = Size(*base, kMaxWidth) / static_cast<double>(config.hidden_size);
  }
}

// Adds the tokens under eos_token_id: none, one, or a list.
void AddEosTokens(const JsonRef& file, ModelConfig& config) {
  const auto eos = file.Find("eos_token_id");
  if (!eos) return;
  const std::vector<JsonRef> ids = eos->value().is_array() ? eos->Array() : std::vector{*eos};
  Require(ids.size() <= kMaxEosTokens, "{}: expected at most {} tokens, got {}", eos->where(),
          kMaxEosTokens, ids.size());
  std::vector<int32_t>& tokens = config.eos_tokens;
  for (const JsonRef& id : ids) {
    const auto token = static_cast<int32_t>(id.Int(0, config.vocab_size - 1));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
}

// What a vision-language model may say outside its text_config.
void ReadShared(const JsonRef& part, ModelConfig& config) {
  if (const auto dtype = FindAny(part, kDtype)) {
    config.weight_dtype = dtype->OneOf({"bfloat16", "float16", "float32"});
  }
  if (const auto blocks = ReadQuantization(part)) config.fp8_blocks = blocks;
  if (const auto bos = part.Find("bos_token_id")) {
    config.bos_token = static_cast<int32_t>(bos->Int(0, config.vocab_size - 1));
  }
  AddEosTokens(part, config);
}

int64_t LinearParameters(int64_t inputs, int64_t outputs, bool has_bias = false) {
  return inputs * outputs + (has_bias ? outputs : 0);
}

int64_t AttentionParameters(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_heads;
  const bool bias = config.attention_bias;
  int64_t count =
      LinearParameters(hidden, config.latent_dim + config.rope_dim, bias) +
      config.latent_dim +  // its norm
      LinearParameters(config.latent_dim, heads * (config.nope_dim + config.value_dim)) +
      LinearParameters(heads * config.value_dim, hidden, bias);
  if (config.q_lora_rank > 0) {
    count += LinearParameters(hidden, config.q_lora_rank, bias) + config.q_lora_rank +
             LinearParameters(config.q_lora_rank, heads * config.head_dim());
  } else {
    count += LinearParameters(hidden, heads * config.head_dim());
  }
  return count;
}

int64_t IndexerParameters(const ModelConfig& config) {
  const IndexerConfig& indexer = *config.indexer;
  return LinearParameters(config.q_lora_rank, int64_t{indexer.num_heads} * indexer.head_dim) +
         LinearParameters(config.hidden_size, indexer.head_dim) + 2 * indexer.head_dim +
         LinearParameters(config.hidden_size, indexer.num_heads);
}

int64_t MlpParameters(const ModelConfig& config, int64_t width) {
  return 3 * config.hidden_size * width;
}

}  // namespace

int32_t IndexerConfig::num_full() const {
  return static_cast<int32_t>(std::ranges::count(layers, IndexerKind::kFull));
}

ModelConfig ParseModelConfig(const JsonRef& file) {
  const JsonRef model = LanguageModel(file);
  const bool is_part = &model.value() != &file.value();
  RefuseOtherAttention(model);
  const Family family = FamilyOf(model);
  const Lineage lineage = family.lineage;
  RefuseOtherModels(model);

  ModelConfig config;
  config.family = model.At("model_type").String();
  if (is_part) config.tensor_prefix = "language_model.";
  config.hidden_size = Size(model, "hidden_size", kMaxWidth);
  config.vocab_size = Size(model, "vocab_size", kMaxVocab);
  config.max_context = Size(model, "max_position_embeddings", kMaxContext);
  config.norm_eps = NumberAbove(0.0, model.At("rms_norm_eps"), 1.0);
  config.tied_embeddings = BoolOr(model, "tie_word_embeddings", family.particulars.tied_embeddings);
  ReadAttention(model, lineage, config);
  config.rope = ReadRope(model, lineage, config);

  config.layers = ReadLayers(model);
  config.indexer = ReadIndexer(model, family, config);
  const auto has = [&](LayerKind kind) {
    return std::find(config.layers.begin(), config.layers.end(), kind) != config.layers.end();
  };
  if (has(LayerKind::kDense)) config.dense_width = Size(model, "intermediate_size", kMaxWidth);
  if (has(LayerKind::kMoe)) config.moe = ReadMoe(model, family);
  if (const auto drafts = FindAny(model, kNumDraftLayers)) {
    config.num_draft_layers = static_cast<int32_t>(drafts->Int(0, kMaxDraftLayers));
  }
  if (lineage == Lineage::kMiniCpm3) ReadScalings(model, config);
  if (is_part) ReadShared(file, config);
  ReadShared(model, config);
  return config;
}

ModelConfig ReadModelConfig(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  const Json json = ReadJsonFile(path);
  ModelConfig config = ParseModelConfig(JsonRef(json, path.string()));
  const std::filesystem::path generation_path = model_dir / "generation_config.json";
  std::error_code ignored;  // what cannot be looked at is not there
  if (std::filesystem::exists(generation_path, ignored)) {
    const Json generation = ReadJsonFile(generation_path);
    AddEosTokens(JsonRef(generation, generation_path.string()), config);
  }
  return config;
}

ModelConfig WithDraftLayer(ModelConfig config) {
  Require(config.num_draft_layers == 1,
          "{}: drafting: expected a model with one draft layer, got num_nextn_predict_layers {}",
          config.family, config.num_draft_layers);
  const bool is_scaled =
      config.embedding_scale != 1 || config.residual_scale != 1 || config.logit_scale != 1;
  Require(!is_scaled,
          "{}: drafting: expected a model without scale_emb, scale_depth and dim_model_base: none "
          "that has them is published with a draft layer",
          config.family);
  config.drafts = true;
  return config;
}

ParameterCounts CountParameters(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t vocabulary = config.vocab_size * hidden;
  // A tied embedding is the head too: all of it is used.
  ParameterCounts count =
      config.tied_embeddings
          ? ParameterCounts{.total = vocabulary, .active = vocabulary}
          : ParameterCounts{.total = 2 * vocabulary, .active = vocabulary + hidden};
  const auto add = [&](int64_t total, int64_t active) {
    count.total += total;
    count.active += active;
  };
  const auto add_used = [&](int64_t parameters) { add(parameters, parameters); };
  add_used(hidden);  // the last norm
  const MoeConfig& moe = config.moe;
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const LayerKind kind = config.layers[static_cast<size_t>(i)];
    add_used(2 * hidden + AttentionParameters(config));
    if (config.HasIndexer(i)) add_used(IndexerParameters(config));
    if (kind == LayerKind::kDense) {
      add_used(MlpParameters(config, config.dense_width));
      continue;
    }
    const int64_t expert = MlpParameters(config, moe.expert_width);
    add_used(LinearParameters(hidden, moe.route.num_experts, moe.route_bias));
    add_used(MlpParameters(config, moe.shared_width));
    if (moe.post_mlp_norm) add_used(hidden);
    add(moe.route.num_experts * expert, moe.route.top_k * expert);
  }
  return count;
}

}  // namespace quire
