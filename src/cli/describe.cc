#include "cli/describe.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace quire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* Name(LayerKind kind) { return kind == LayerKind::kDense ? "dense" : "MoE"; }

const char* Name(ScoreFunction score) {
  return score == ScoreFunction::kSoftmax ? "softmax" : "sigmoid";
}

const char* Name(ExpertSelection selection) {
  switch (selection) {
    case ExpertSelection::kGreedy:
      return "greedy";
    case ExpertSelection::kGroupMax:
      return "groups by their highest score";
    case ExpertSelection::kGroupTopTwo:
      return "groups by their two highest scores";
  }
  return "unknown";
}

const char* Name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kLongRope:
      return "longrope";
  }
  return "unknown";
}

const char* Name(RopePairs pairs) {
  return pairs == RopePairs::kInterleaved ? "interleaved" : "halves";
}

// Neighbouring layers of one kind.
struct LayerRange {
  LayerKind kind;
  size_t first;
  size_t last;
};

std::vector<LayerRange> LayerRanges(const ModelConfig& config) {
  std::vector<LayerRange> ranges;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (ranges.empty() || ranges.back().kind != config.layers[i]) {
      ranges.push_back({.kind = config.layers[i], .first = i, .last = i});
    }
    ranges.back().last = i;
  }
  return ranges;
}

std::string DescribeAttention(const ModelConfig& config) {
  const std::string queries =
      config.q_lora_rank > 0 ? fmt::format("of rank {}", config.q_lora_rank) : "projected directly";
  return fmt::format("{} heads, keys {} + {} rotary, values {}, latent {}, queries {}{}",
                     config.num_heads, config.nope_dim, config.rope_dim, config.value_dim,
                     config.latent_dim, queries, config.attention_bias ? ", biases" : "");
}

std::string DescribeExperts(const MoeConfig& moe) {
  std::string text =
      fmt::format("{} of {} wide, {} per token; shared: {} wide", moe.route.num_experts,
                  moe.expert_width, moe.route.top_k, moe.shared_width);
  return moe.shared_width > 0 ? text : text.substr(0, text.find(';'));
}

std::string DescribeRouting(const MoeConfig& moe) {
  const RouteShape& route = moe.route;
  std::string text = fmt::format("{}, {}", Name(route.score), Name(route.selection));
  if (route.selection != ExpertSelection::kGreedy) {
    text += fmt::format(", {} of {} groups", route.top_groups, route.num_groups);
  }
  return text + fmt::format("{}{}, weights x {}", moe.route_bias ? ", with bias" : "",
                            route.normalize ? ", normalised" : "", route.scale);
}

std::string DescribeRope(const RopeConfig& rope) {
  std::string text = fmt::format("theta {}, {} pairs", rope.theta, Name(rope.pairs));
  if (rope.scaling == RopeScaling::kNone) return text;
  return text + fmt::format(", {} x {} from {} positions", Name(rope.scaling), rope.factor,
                            rope.original_context);
}

std::string DescribeIndexer(const IndexerConfig& indexer) {
  std::string text = fmt::format("{} heads of {}, {} keys chosen, {} pairs", indexer.num_heads,
                                 indexer.head_dim, indexer.top_k, Name(indexer.pairs));
  if (indexer.init_tokens > 0) text += fmt::format(", the first {}", indexer.init_tokens);
  if (indexer.local_tokens > 0) text += fmt::format(", the last {}", indexer.local_tokens);
  return text;
}

// "61 full", or "21 full (0, 1, 2, 6), 57 shared".
std::string DescribeIndexerLayers(const IndexerConfig& indexer) {
  std::vector<size_t> full;
  for (size_t i = 0; i < indexer.layers.size(); ++i) {
    if (indexer.layers[i] == IndexerKind::kFull) full.push_back(i);
  }
  if (full.size() == indexer.layers.size()) return fmt::format("{} full", full.size());
  return fmt::format("{} full ({}), {} shared", full.size(), fmt::join(full, ", "),
                     indexer.layers.size() - full.size());
}

std::string Line(const char* name, const std::string& value) {
  return fmt::format("  {:<12} {}\n", name, value);
}

OrderedJson ExpertsToJson(const MoeConfig& moe) {
  if (moe.expert_width == 0) return nullptr;
  const RouteShape& route = moe.route;
  return {{"experts", route.num_experts},
          {"experts_per_token", route.top_k},
          {"width", moe.expert_width},
          {"shared_width", moe.shared_width},
          {"groups", route.num_groups},
          {"top_groups", route.top_groups},
          {"score", Name(route.score)},
          {"selection", Name(route.selection)},
          {"bias", moe.route_bias},
          {"normalize", route.normalize},
          {"scale", static_cast<double>(route.scale)}};
}

OrderedJson IndexerToJson(const std::optional<IndexerConfig>& indexer) {
  if (!indexer) return nullptr;
  OrderedJson layers = OrderedJson::array();
  for (const IndexerKind kind : indexer->layers) {
    layers.push_back(kind == IndexerKind::kFull ? "full" : "shared");
  }
  return {{"heads", indexer->num_heads},
          {"head_dim", indexer->head_dim},
          {"top_k", indexer->top_k},
          {"pairs", Name(indexer->pairs)},
          {"init_tokens", indexer->init_tokens},
          {"local_tokens", indexer->local_tokens},
          {"layers", std::move(layers)}};
}

OrderedJson RopeToJson(const RopeConfig& rope) {
  OrderedJson json = {
      {"theta", rope.theta}, {"pairs", Name(rope.pairs)}, {"scaling", Name(rope.scaling)}};
  if (rope.scaling != RopeScaling::kNone) {
    json["factor"] = rope.factor;
    json["original_context"] = rope.original_context;
  }
  return json;
}

}  // namespace

std::string FormatDigits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string FormatCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1000) return std::to_string(count);
  if (value < 1e6) return fmt::format("{:.1f}k", value * 1e-3);
  return value < 1e9 ? fmt::format("{:.1f}M", value * 1e-6) : fmt::format("{:.2f}B", value * 1e-9);
}

std::string DescribeLayers(const ModelConfig& config) {
  std::string text;
  for (const LayerRange& range : LayerRanges(config)) {
    const std::string numbers = range.first == range.last
                                    ? std::to_string(range.first)
                                    : fmt::format("{}..{}", range.first, range.last);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", numbers, Name(range.kind));
  }
  return text;
}

const char* KvTypeName(KvFormat format) {
  switch (format) {
    case KvFormat::kLatentF32:
      return "f32";
    case KvFormat::kLatentBf16:
      return "bf16";
    case KvFormat::kLatentFp8:
      return "fp8";
    default:
      return KvFormatName(format);
  }
}

std::string Describe(const ModelConfig& config) {
  const ParameterCounts parameters = CountParameters(config);
  std::string text = Line("family", config.family);
  text +=
      Line("parameters", fmt::format("{}, {} of them for each token", FormatCount(parameters.total),
                                     FormatCount(parameters.active)));
  text += Line("layers", fmt::format("{}: {}", config.num_layers(), DescribeLayers(config)));
  if (config.num_draft_layers == 1) {
    text += Line("", "a draft layer follows, which --speculative-algorithm eagle uses");
  } else if (config.num_draft_layers > 1) {
    text += Line(
        "", fmt::format("{} draft layers follow, which are not used", config.num_draft_layers));
  }
  text += Line("hidden", std::to_string(config.hidden_size));
  text += Line("attention", DescribeAttention(config));
  if (config.indexer) {
    text += Line("indexer", DescribeIndexer(*config.indexer));
    text += Line("", DescribeIndexerLayers(*config.indexer));
  }
  if (config.dense_width > 0) text += Line("dense MLP", fmt::format("{} wide", config.dense_width));
  if (config.moe.expert_width > 0) {
    text += Line("experts", DescribeExperts(config.moe));
    text += Line("routing", DescribeRouting(config.moe));
  }
  text += Line("rope", DescribeRope(config.rope));
  text += Line("vocabulary", fmt::format("{}{}", config.vocab_size,
                                         config.tied_embeddings ? ", one matrix in and out" : ""));
  text += Line("context", fmt::format("{} tokens", config.max_context));
  return text;
}

std::string Describe(const EagleConfig& head) {
  const ModelConfig& layer = head.layer;
  return Line("draft model", fmt::format("EAGLE-3, of the hidden state before layers {}",
                                         fmt::join(head.wanted_layers, ", "))) +
         Line("", DescribeAttention(layer)) +
         Line("", fmt::format("{} wide, {} of {} tokens", layer.dense_width, head.draft_vocab_size,
                              layer.vocab_size));
}

OrderedJson ConfigToJson(const EagleConfig& head) {
  const ModelConfig& layer = head.layer;
  return {{"wanted_layers", head.wanted_layers}, {"draft_vocab_size", head.draft_vocab_size},
          {"num_heads", layer.num_heads},        {"q_lora_rank", layer.q_lora_rank},
          {"latent_dim", layer.latent_dim},      {"nope_dim", layer.nope_dim},
          {"rope_dim", layer.rope_dim},          {"value_dim", layer.value_dim},
          {"dense_width", layer.dense_width}};
}

OrderedJson ConfigToJson(const ModelConfig& config) {
  const ParameterCounts parameters = CountParameters(config);
  OrderedJson layers = OrderedJson::array();
  for (const LayerKind kind : config.layers) {
    layers.push_back(kind == LayerKind::kDense ? "dense" : "moe");
  }
  return {{"family", config.family},
          {"parameters", parameters.total},
          {"active_parameters", parameters.active},
          {"layers", std::move(layers)},
          {"draft_layers", config.num_draft_layers},
          {"hidden_size", config.hidden_size},
          {"vocab_size", config.vocab_size},
          {"max_context", config.max_context},
          {"num_heads", config.num_heads},
          {"q_lora_rank", config.q_lora_rank},
          {"latent_dim", config.latent_dim},
          {"nope_dim", config.nope_dim},
          {"rope_dim", config.rope_dim},
          {"value_dim", config.value_dim},
          {"dense_width", config.dense_width},
          {"moe", ExpertsToJson(config.moe)},
          {"indexer", IndexerToJson(config.indexer)},
          {"rope", RopeToJson(config.rope)},
          {"tied_embeddings", config.tied_embeddings}};
}

}  // namespace quire::cli
