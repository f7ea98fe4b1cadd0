#include "runner/plan_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/eagle.h"
#include "model/forward.h"
#include "model/rope_table.h"
#include "model/shard.h"
#include "model/weights.h"
#include "runner/kv_stores.h"

namespace quire {
namespace {

constexpr int32_t kMaxSeqs = 4096;
constexpr int64_t kMaxStepTokens = int64_t{1} << 20;
constexpr int32_t kMaxThreads = 1024;
constexpr int64_t kMaxTreeNodes = 1024;

// Of one sequence, its tree among them.
PageCount PagesOfSequence(const RunnerLimits& limits) {
  return limits.page_size.PagesFor(limits.context + limits.max_tree_nodes);
}

// Pages, without the scratch page, that the options ask for.
PageCount WantedPages(const RunnerOptions& options, const MemoryPlan& plan) {
  const RunnerLimits& limits = plan.limits;
  if (options.pool_tokens > TokenCount(0)) return limits.page_size.PagesFor(options.pool_tokens);
  const PageCount of_one = PagesOfSequence(limits);
  const PageCount of_all = of_one * limits.max_seqs;
  if (options.pool_room == PoolRoom::kEverySequence) return of_all;
  const ByteOffset bytes = Max(kModestPool, ByteOffset(plan.weights.raw() / 4));
  return Min(of_all, Max(of_one, PageCount(bytes.raw() / plan.kv_per_page.raw())));
}

ByteOffset PageBytes(const ModelConfig& config, const RunnerOptions& options) {
  ByteOffset bytes{0};
  for (const KvLayout& layout : StoreLayouts(config, options)) bytes += layout.page_bytes();
  return bytes;
}

// Of these, what index keys are.
ByteOffset IndexPageBytes(const ModelConfig& config, const RunnerOptions& options) {
  ByteOffset bytes{0};
  for (const KvLayout& layout : StoreLayouts(config, options)) {
    if (layout.is_index_key()) bytes += layout.page_bytes();
  }
  return bytes;
}

// And what rows of a draft layer are, its index keys among them.
ByteOffset DraftPageBytes(const ModelConfig& config, const RunnerOptions& options) {
  const std::vector<KvLayout> layouts = StoreLayouts(config, options);
  ByteOffset bytes{0};
  for (const KvLayout& layout : std::span(layouts).subspan(NumTrunkStores(config))) {
    bytes += layout.page_bytes();
  }
  return bytes;
}

// As many of the wanted pages as the memory limit leaves room for; page ids are 32-bit.
PageCount PagesThatFit(const MemoryPlan& plan, const RunnerOptions& options, PageCount wanted) {
  const ByteOffset fixed = plan.total();  // without KV: there is none yet
  const ByteOffset left = options.memory_limit - Min(fixed, options.memory_limit);
  const PageCount fit(
      std::min<int64_t>(left.raw() / plan.kv_per_page.raw(), std::numeric_limits<int32_t>::max()));
  const PageCount least = PagesOfSequence(plan.limits) + PageCount(1);
  const PageCount pages = Min(wanted + PageCount(1), fit);
  if (options.pool_tokens > TokenCount(0) ? pages < wanted + PageCount(1) : pages < least) {
    const PageCount needed = options.pool_tokens > TokenCount(0) ? wanted + PageCount(1) : least;
    throw Error(ErrorCode::kCapacityExceeded,
                "memory: {} weights + {} workspace{} + {} KV ({} pages of {} tokens, {} each) = {} "
                "exceed the limit of {}; a shorter context length, fewer running requests or a "
                "smaller KV cache type needs less",
                FormatBytes(plan.weights), FormatBytes(plan.workspace + plan.step_tables),
                plan.outside > ByteOffset(0)
                    ? fmt::format(" + {} in use beside it", FormatBytes(plan.outside))
                    : "",
                FormatBytes(plan.kv_per_page * needed.raw()), needed, plan.limits.page_size.raw(),
                FormatBytes(plan.kv_per_page), FormatBytes(fixed + plan.kv_per_page * needed.raw()),
                FormatBytes(options.memory_limit));
  }
  return pages;
}

}  // namespace

ModelConfig ConfigFor(const ModelConfig& model, const RunnerOptions& options) {
  const bool has_own_layer = options.draft_layer && options.head == nullptr;
  ModelConfig config = has_own_layer ? WithDraftLayer(model) : model;
  if (options.tp_size != 1 || options.ep_size != 1) {
    config = WithShard(std::move(config), options.rank, options.tp_size, options.ep_size);
  }
  if (options.dp_size != 1) {
    config = WithOwnTokens(std::move(config), options.rank, options.dp_size);
  }
  if (options.index_top_k == 0) return config;
  Require(config.indexer.has_value(), "index top-k: expected a model with sparse attention, got {}",
          config.family);
  IndexerConfig& indexer = *config.indexer;
  const int32_t least = std::max(1, indexer.init_tokens + indexer.local_tokens);
  Require(options.index_top_k >= least && options.index_top_k <= indexer.top_k,
          "index top-k: expected {}..{}, what the model was made for, got {}", least, indexer.top_k,
          options.index_top_k);
  indexer.top_k = options.index_top_k;
  return config;
}

void CheckOptions(const ModelConfig& config, const RunnerOptions& options) {
  Require(options.max_seqs >= 1 && options.max_seqs <= kMaxSeqs,
          "max running requests: expected 1..{}, got {}", kMaxSeqs, options.max_seqs);
  Require(options.max_step_tokens >= TokenCount(1) &&
              options.max_step_tokens <= TokenCount(kMaxStepTokens),
          "chunked prefill size: expected 1..{} tokens, got {}", kMaxStepTokens,
          options.max_step_tokens);
  Require(options.max_step_tokens >= TokenCount(options.max_seqs),
          "chunked prefill size: expected at least one token for each of {} running requests, got "
          "{}",
          options.max_seqs, options.max_step_tokens);
  Require(options.num_threads >= 1 && options.num_threads <= kMaxThreads,
          "threads: expected 1..{}, got {}", kMaxThreads, options.num_threads);
  Require(options.context >= TokenCount(0) && options.context <= TokenCount(config.max_context),
          "context length: expected 1..{} (what the model was made for), got {}",
          config.max_context, options.context);
  Require(options.tree_nodes >= TokenCount(0) && options.tree_nodes <= TokenCount(kMaxTreeNodes),
          "tree nodes: expected 0..{}, got {}", kMaxTreeNodes, options.tree_nodes);
  Require(options.pool_tokens >= TokenCount(0), "KV tokens: expected >= 0, got {}",
          options.pool_tokens);
  Require(options.dp_size == 1 || (options.tp_size == 1 && options.ep_size == 1),
          "dp size: expected 1 with a tp size or an ep size above 1, got {}", options.dp_size);
  if (options.head == nullptr) return;
  QUIRE_CHECK(options.draft_layer && options.num_ranks() == 1, "a head of {} ranks",
              options.num_ranks());
  const int64_t tokens = options.head->config->draft_vocab_size;
  Require(options.draft_branches <= tokens,
          "speculation: branches: expected up to the draft model's {} tokens, got {}", tokens,
          options.draft_branches);
}

RunnerLimits LimitsWithoutPool(const ModelConfig& config, const RunnerOptions& options) {
  // Every sequence may draw a token behind every node of its tree.
  const auto samples_each = static_cast<int32_t>(std::max<int64_t>(1, options.tree_nodes.raw()));
  return {
      .page_size = options.page_size,
      .context = options.context > TokenCount(0) ? options.context : TokenCount(config.max_context),
      .max_seqs = options.max_seqs,
      .max_step_tokens = options.max_step_tokens,
      .max_samples = options.max_seqs * samples_each,
      .vocab_size = config.vocab_size,
      .max_tree_nodes = options.tree_nodes,
      .has_draft_rows = options.draft_layer};
}

MemoryPlan PlanMemory(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                      const BackendMemory& backend) {
  CheckOptions(config, options);
  MemoryPlan plan;
  plan.limits = LimitsWithoutPool(config, options);
  Carver weights, angles;
  backend.load(weights, [&](WeightPacker& packer) { LoadWeights(config, source, packer); });
  backend.load(angles,
               [&](WeightPacker& packer) { MakeRopeAngles(config, plan.limits.context, packer); });
  if (options.head != nullptr) {
    const OpenedHead& head = *options.head;
    Carver draft;
    backend.load(draft,
                 [&](WeightPacker& packer) { LoadWeights(*head.config, *head.weights, packer); });
    backend.load(angles, [&](WeightPacker& packer) {
      MakeRopeAngles(head.config->layer, plan.limits.context, packer);
    });
    plan.draft_weights = draft.used();
  }
  const StepMemory steps = backend.steps(plan.limits);
  plan.weights = weights.used() + plan.draft_weights;
  plan.workspace = angles.used() + steps.workspace_bytes;
  plan.attention = steps.attention_bytes;
  plan.selection = steps.selection_bytes;
  plan.expanded = steps.expanded_bytes;
  plan.step_tables = steps.table_bytes;
  plan.outside = backend.outside;
  ChoosePool(config, options, plan);
  return plan;
}

void ChoosePool(const ModelConfig& config, const RunnerOptions& options, MemoryPlan& plan) {
  plan.kv = ByteOffset(0);
  plan.kv_per_page = PageBytes(config, options);
  plan.kv_per_token = ByteOffset(plan.kv_per_page.raw() / options.page_size.raw());
  plan.index_per_token =
      ByteOffset(IndexPageBytes(config, options).raw() / options.page_size.raw());
  plan.draft_per_token =
      ByteOffset(DraftPageBytes(config, options).raw() / options.page_size.raw());
  plan.limits.pool_pages = PagesThatFit(plan, options, WantedPages(options, plan));
  Carver kv;
  LayOutStores(config, plan.limits, options, kv);
  plan.kv = kv.used();
}

}  // namespace quire
