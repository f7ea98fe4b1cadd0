#include "runner/cuda/cuda_step_layout.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_planner.h"
#include "kernels/cuda/mha_prefill/mha_prefill.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/moe/router.h"
#include "kernels/cuda/select_keys/select_keys.h"
#include "kernels/weight.h"
#include "model/eagle.h"
#include "model/indexer.h"
#include "runner/logit_rows.h"
#include "runner/plan_parts.h"

namespace quire::cuda {
namespace {

// cuBLASLt wants its workspace on a multiple of 256 bytes, more than a Carver gives.
std::span<std::byte> TakeGemmWorkspace(Carver& device) {
  constexpr size_t kAlignment = 256;
  const std::span<std::byte> bytes =
      device.TakeBytes(GemmPlanner::kWorkspaceBytes + ByteOffset(kAlignment));
  if (device.counting()) return {};
  const size_t past = reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment;
  return bytes.subspan(past == 0 ? 0 : kAlignment - past,
                       static_cast<size_t>(GemmPlanner::kWorkspaceBytes.raw()));
}

// Prompts' keys and values of all heads take no more than this; a prompt that needs more attends in
// latent form.
constexpr ByteOffset kExpandedBytes{int64_t{1} << 30};

// The longest context, and the rest of a step beside it, where they find room.
TokenCount ExpandedKeysFor(const ModelConfig& config, const RunnerLimits& limits) {
  if (!config.expands) return TokenCount(0);
  const TokenCount fit(kExpandedBytes.raw() / ExpandedKeyBytes(HeadShape(config)).raw());
  const TokenCount wanted = limits.context + limits.max_step_tokens * 2;
  return kExpandedBlock * (Min(fit, wanted).raw() / kExpandedBlock.raw());
}

// Kernels take e4m3 weights with whole blocks of scales alone.
void RequireWholeBlocks(const ModelConfig& config) {
  constexpr int64_t block = kScaleBlock;
  const auto require = [&](bool is_whole, const char* what, int64_t width) {
    Require(is_whole,
            "tp size: expected a number of ranks that get whole blocks of {} of the {} {} of e4m3 "
            "weights, got {}",
            block, width, what, config.shard.size);
  };
  require(config.own_heads().count * config.head_dim() % block == 0, "query columns",
          int64_t{config.num_heads} * config.head_dim());
  const MoeConfig& moe = config.moe;
  for (const int64_t width : {config.hidden_size, config.dense_width, moe.shared_width,
                              config.shard.experts_by_rank ? 0 : moe.expert_width}) {
    require(width == 0 || width >= block * config.shard.size, "columns", width);
  }
}

// What ranks bring together at once, at most.
ByteOffset LargestGather(const ModelConfig& config, int64_t num_tokens, int64_t logit_rows) {
  const MoeConfig& moe = config.moe;
  const int64_t of_token =
      std::max({int64_t{config.num_heads} * config.value_dim, config.hidden_size,
                config.dense_width, moe.shared_width, moe.route.top_k * moe.expert_width});
  return ByteOffset(std::max(num_tokens * of_token * DTypeBytes(DType::kBf16),
                             logit_rows * config.vocab_size * DTypeBytes(DType::kF32)));
}

WorkShape DenseWorkShape(const ModelConfig& config, const BucketSize& size, const MlaRoom& room,
                         const RunnerOptions& options) {
  return MlaWorkShape(AttentionShape(config), room,
                      size.is_decode ? MlaStep::kDecode : MlaStep::kAny, options.deterministic,
                      size.num_tokens, options.kv_format);
}

// For what the passes of one step bring, most of which are small. A pass that brings more is waited for.
constexpr ByteOffset kStagingBytes{int64_t{4} << 20};

}  // namespace

bool GrowsTrees(const RunnerOptions& options) {
  return options.draft_layer && options.draft_branches > 0 && options.num_ranks() == 1;
}

ModelConfig CudaConfigFor(const ModelConfig& model, const RunnerOptions& options) {
  ModelConfig config = ConfigFor(model, options);
  if (config.shard.is_cut() && MultipliesCodes(config)) RequireWholeBlocks(config);
  // Ranks tell each other nothing of it so far.
  config.expands =
      !options.deterministic && options.num_ranks() == 1 && CanExpand(HeadShape(config));
  return config;
}

StepMemory LayOutCudaSteps(const ModelConfig& config, const RunnerLimits& limits,
                           const RunnerOptions& options, const MlaRoom& room, CudaStepParts& parts,
                           Carver& device, Carver& pinned) {
  ValidateForDevice(NextCapacity(limits));
  const auto bucket_parts = [&](size_t i) -> CudaStepParts::BucketParts& {
    if (parts.buckets.size() <= i) parts.buckets.resize(i + 1);
    return parts.buckets[i];
  };
  const int64_t logit_rows = std::max<int64_t>(kLogitBlock, MaxNextRows(limits));
  const auto work = [&](const BucketSize& size) {
    if (config.indexer) {
      return SparseWorkShape(AttentionShape(config), config.indexer->top_k, room.num_sms,
                             options.deterministic);
    }
    return DenseWorkShape(config, size, room, options);
  };
  const auto head_work = [&](const BucketSize& size) {
    return DenseWorkShape(options.head->config->layer, size, room, options);
  };
  // A row that sees no more keys than it can choose gets them all, so one graph serves short rows and
  // long ones.
  const std::optional<WorkShape> choosing =
      config.indexer ? std::optional(SelectWorkShape(IndexShapeOf(config), room.num_sms))
                     : std::nullopt;
  const auto attention = [](const OpLimits& ops) {
    return MlaAttentionWorkspace(ops.capacity, ops.work, ops.attention);
  };
  const auto plan = [&](size_t i, const Bucket& bucket, const PageRows& rows, Carver& on_device,
                        Carver& on_host) {
    const std::optional<WorkShape> selection = bucket.is_head ? std::nullopt : choosing;
    if (on_device.counting()) {
      const PlanStorageMemory need =
          PlanStorageBytes(bucket.capacity, bucket.work, kNewPages, selection);
      on_device.TakeBytes(need.device);
      on_host.TakeBytes(need.pinned);
    } else {
      bucket_parts(i).plan = std::make_unique<PlanStorage>(bucket.capacity, bucket.work, kNewPages,
                                                           rows, on_device, on_host, selection);
    }
  };
  int64_t most_tokens = 0;
  const auto ops = [&](size_t i, const OpLimits& op_limits, Carver& region) {
    most_tokens = std::max(most_tokens, op_limits.num_tokens());
    OpLimits with_choosing = op_limits;
    with_choosing.selection = choosing.value_or(WorkShape{});
    bucket_parts(i).scratch = LayOutOps(with_choosing, region);
  };
  const auto more = [&](Carver& on_device) {
    SampleCapacity sampled = NextCapacity(limits);
    sampled.rows = static_cast<int32_t>(logit_rows);  // those of a block of scores fit too
    parts.sampling = LayOutSampleScratch(sampled, on_device);
    parts.router_arrived = on_device.Take<int32_t>(kRouterCounts);
    if (config.shard.is_cut()) {
      parts.gathers = on_device.TakeBytes(LargestGather(config, most_tokens, logit_rows));
    }
    if (GrowsTrees(options)) {
      const GrowthRoom growth = GrowthRoomOf(limits, options);
      parts.growths = LayOutTreeGrowths(growth, on_device);
      parts.kept = on_device.Take<KeptDraft>(growth.growths);
      parts.growing = on_device.Take<GrowingRows>(growth.growths);
      parts.trees = on_device.Take<GrownTree>(growth.growths);
      if (options.head != nullptr) {
        parts.token_ids = on_device.Take<int32_t>(options.head->config->draft_vocab_size);
      }
    }
    if (options.deterministic) return;
    parts.gemm = TakeGemmWorkspace(on_device);
    parts.side_gemm = TakeGemmWorkspace(on_device);
  };
  // The same buckets in both modes: an eager step launches what the graph of its bucket holds.
  const auto selection = [&](const OpLimits& of) {
    return of.index.num_heads > 0 ? SelectKeysWorkspace(of.capacity, *choosing, of.index)
                                  : ByteOffset(0);
  };
  const TokenCount expanded_keys = ExpandedKeysFor(config, limits);
  const StepLayout layout{
      .activation = DType::kBf16,
      .buckets = StepMode::kGraph,
      .logit_rows = logit_rows,
      .work = work,
      .head_work = head_work,
      .attention = attention,
      .selection = selection,
      .expanded_keys = expanded_keys,
      .expanded_key_bytes = config.expands ? ExpandedKeyBytes(HeadShape(config)) : ByteOffset(0),
      .plan = plan,
      .ops = ops,
      .more = more};
  StepMemory memory = LayOutSteps(config, limits, options, layout, device, pinned);
  QUIRE_CHECK(memory.num_draft_rows <= logit_rows, "logits of {} rows, and a draft may want {}",
              logit_rows, memory.num_draft_rows);
  if (GrowsTrees(options)) parts.staging = pinned.TakeBytes(kStagingBytes);
  return memory;
}

}  // namespace quire::cuda
