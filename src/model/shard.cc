#include "model/shard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"

namespace quire {
namespace {

// "1, 2 or 4": what divides `count`, and is no more than `most`.
std::string DivisorsOf(int64_t count, int64_t most) {
  std::vector<std::string> divisors;
  for (int64_t i = 1; i <= std::min(count, most); ++i) {
    if (count % i == 0) divisors.push_back(std::to_string(i));
  }
  if (divisors.empty()) return "none";
  const std::string last = divisors.back();
  divisors.pop_back();
  return divisors.empty() ? last : fmt::format("{} or {}", fmt::join(divisors, ", "), last);
}

// The narrowest of what is cut by columns.
int64_t NarrowestCut(const ModelConfig& config, bool experts_by_rank) {
  int64_t least = std::min(config.hidden_size, config.vocab_size);
  const MoeConfig& moe = config.moe;
  for (const int64_t width :
       {config.dense_width, moe.shared_width, experts_by_rank ? 0 : moe.expert_width}) {
    if (width > 0) least = std::min(least, width);
  }
  return least;
}

}  // namespace

int64_t ModelConfig::CutUnit(int64_t width) const {
  const int64_t unit = fp8_blocks ? fp8_blocks->rows : kPanelOutputs;
  return width >= unit * shard.size ? unit : 1;
}

ModelConfig WithShard(ModelConfig config, int32_t rank, int32_t tp_size, int32_t ep_size) {
  Require(ep_size == 1 || tp_size > 1,
          "ep size: expected 1, or a tp size of as many ranks with it, got {} and one rank",
          ep_size);
  Require(ep_size == 1 || ep_size == tp_size, "ep size: expected 1 or {}, the tp size, got {}",
          tp_size, ep_size);
  const bool experts_by_rank = ep_size > 1;
  const int64_t most = NarrowestCut(config, experts_by_rank);
  Require(tp_size >= 1 && config.num_heads % tp_size == 0 && tp_size <= most,
          "tp size: expected a number of ranks that the {} heads come out even for: {}, got {}",
          config.num_heads, DivisorsOf(config.num_heads, most), tp_size);
  const int32_t num_experts = config.moe.expert_width > 0 ? config.moe.route.num_experts : 0;
  Require(!experts_by_rank || num_experts > 0,
          "ep size: expected 1 for a model without experts, got {}", ep_size);
  Require(!experts_by_rank || num_experts % ep_size == 0,
          "ep size: expected 1 or a number that the {} experts come out even for: {}, got {}",
          num_experts, DivisorsOf(num_experts, num_experts), ep_size);
  QUIRE_CHECK(rank >= 0 && rank < tp_size, "rank {} of {}", rank, tp_size);
  config.shard = {.rank = rank, .size = tp_size, .experts_by_rank = experts_by_rank};
  return config;
}

ModelConfig WithOwnTokens(ModelConfig config, int32_t rank, int32_t dp_size) {
  const int32_t num_experts = config.moe.expert_width > 0 ? config.moe.route.num_experts : 0;
  Require(num_experts > 0 || dp_size == 1,
          "dp size: expected 1 for a model without experts, got {}", dp_size);
  Require(
      dp_size >= 1 && dp_size <= kMaxExpertRanks && (dp_size == 1 || num_experts % dp_size == 0),
      "dp size: expected a number of ranks that the {} experts come out even for: {}, got {}",
      num_experts, DivisorsOf(num_experts, kMaxExpertRanks), dp_size);
  QUIRE_CHECK(rank >= 0 && rank < dp_size, "rank {} of {}", rank, dp_size);
  config.shard = {
      .rank = rank, .size = dp_size, .experts_by_rank = true, .tokens = RankTokens::kOwn};
  return config;
}

}  // namespace quire
