#include "runner/step_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/store.h"
#include "model/eagle.h"
#include "runner/kv_stores.h"
#include "runner/logit_rows.h"

namespace quire {
namespace {

// Takes a region that is as large as `lay_out` needs, and lays it out. Where `carver` counts, so does
// what is laid out.
template <class LayOut>
std::span<std::byte> TakeLaidOut(Carver& carver, LayOut lay_out) {
  Carver counter;
  lay_out(counter);
  const std::span<std::byte> bytes = carver.TakeBytes(counter.used());
  if (carver.counting()) return {};
  Carver region(bytes, carver.side());
  lay_out(region);
  return bytes;
}

// The buckets use one region in turn, each from its beginning, so a bucket's addresses never change.
template <class LayOut>
std::span<std::byte> TakeShared(Carver& carver, size_t num_buckets, LayOut lay_out) {
  ByteOffset largest{0};
  for (size_t i = 0; i < num_buckets; ++i) {
    Carver counter;
    lay_out(i, counter);
    largest = Max(largest, counter.used());
  }
  const std::span<std::byte> bytes = carver.TakeBytes(largest);
  if (carver.counting()) return {};
  for (size_t i = 0; i < num_buckets; ++i) {
    Carver region(bytes, carver.side());
    lay_out(i, region);
  }
  return bytes;
}

int32_t HeadRows(const BucketSize& size, const RunnerLimits& limits) {
  // With trees any token may be one of which tokens are drawn.
  const bool has_trees = limits.max_tree_nodes > TokenCount(0) && !size.is_decode;
  return static_cast<int32_t>(
      std::min<int64_t>(has_trees ? size.num_tokens.raw() : size.num_seqs, MaxNextRows(limits)));
}

// Prompts of a draft layer attend in latent form. Every sequence wants tokens of a row or of a level.
int32_t DraftRows(const Bucket& bucket, int32_t num_draft_rows) {
  return bucket.size.expands() ? 0 : std::min(bucket.head_rows, num_draft_rows);
}

std::vector<Bucket> MakeBucketList(const RunnerLimits& limits, const StepLayout& layout,
                                   int32_t num_draft_rows) {
  std::vector<Bucket> buckets;
  for (const BucketSize& size : MakeBuckets(layout.buckets, limits.max_seqs, limits.max_step_tokens,
                                            layout.expanded_keys > TokenCount(0))) {
    Bucket bucket;
    bucket.size = size;
    bucket.capacity = CapacityOfBucket(size, limits);
    bucket.work = layout.work(size);
    bucket.head_rows = HeadRows(size, limits);
    bucket.draft_rows = DraftRows(bucket, num_draft_rows);
    if (size.expands()) bucket.expanded_keys = layout.expanded_keys;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

int32_t MostTokens(std::span<const Bucket> buckets) {
  int64_t most = 0;
  for (const Bucket& bucket : buckets) most = std::max(most, bucket.size.num_tokens.raw());
  return static_cast<int32_t>(most);
}

// Passes have the sizes of buckets, and plans of the head's own geometry.
std::vector<Bucket> MakeHeadList(std::span<const Bucket> buckets, const StepLayout& layout) {
  std::vector<Bucket> heads;
  for (const Bucket& bucket : buckets) {
    Bucket& head = heads.emplace_back();
    head.is_head = true;
    head.size = bucket.size;
    head.capacity = bucket.capacity;
    head.work = layout.head_work(bucket.size);
    head.draft_rows = bucket.draft_rows;
  }
  return heads;
}

// ---- Inputs and outputs: the same on both sides ----

BucketInputs LayOutInputs(const Bucket& bucket, const RunnerLimits& limits, const RareInputs& rare,
                          Carver& carver) {
  const int64_t tokens = bucket.size.num_tokens.raw();
  return {.tokens = carver.Take<int32_t>(tokens),
          .positions = carver.Take<TokenCount>(tokens),
          .slots = carver.Take<Slot>(tokens),
          .live_tokens = carver.Take<int32_t>(1),
          .expansion = bucket.size.expands()
                           ? LayOutExpansion(bucket.size.num_seqs, bucket.size.num_tokens,
                                             bucket.expanded_keys, carver)
                           : Expansion(),
          .logit_rows = carver.Take<int32_t>(bucket.head_rows),
          .sampling = {.counts = carver.Take<SampleCounts>(1),
                       .items = carver.Take<SampleItem>(MaxNextItems(limits)),
                       .biases = rare.biases,
                       .text = rare.text,
                       .masks = rare.masks}};
}

void LayOutInputs(const RunnerLimits& limits, const RareInputs& rare, BucketInputs Bucket::*where,
                  Carver& carver, std::span<Bucket> buckets) {
  std::vector<ByteOffset> used(buckets.size());
  const auto lay_out = [&](size_t i, Carver& region) {
    buckets[i].*where = LayOutInputs(buckets[i], limits, rare, region);
    used[i] = region.used();
  };
  const std::span<std::byte> bytes = TakeShared(carver, buckets.size(), lay_out);
  if (carver.counting()) return;
  for (size_t i = 0; i < buckets.size(); ++i) {
    (buckets[i].*where).bytes = bytes.first(static_cast<size_t>(used[i].raw()));
  }
}

RareInputs LayOutRare(const RunnerLimits& limits, Carver& carver) {
  const int64_t rows = limits.page_size.TokensIn(PageCount(limits.max_seqs)).raw();
  const SampleCapacity next = NextCapacity(limits);
  RareInputs rare;
  rare.move_from = carver.Take<Slot>(MaxMoves(limits));
  rare.move_to = carver.Take<Slot>(MaxMoves(limits));
  rare.copy_from = carver.Take<Slot>(rows);
  rare.copy_to = carver.Take<Slot>(rows);
  rare.biases = carver.Take<LogitBias>(next.biases);
  rare.text = carver.Take<int32_t>(next.text);
  rare.masks = carver.Take<uint32_t>(next.masks * MaskWords(next.vocab_size));
  for (int64_t i = 0; i < MaxScoreBlocks(limits); ++i) {
    ScoreInputs block;
    block.bytes = TakeLaidOut(carver, [&](Carver& region) {
      block.rows = region.Take<int32_t>(kLogitBlock);
      block.sampling = LayOutSampleInputs(ScoreCapacity(limits), region);
    });
    rare.scores.push_back(std::move(block));
  }
  return rare;
}

StepOutputs LayOutOutputs(const RunnerLimits& limits, const GrowthRoom& trees, int64_t num_layers,
                          Carver& carver) {
  StepOutputs outputs;
  outputs.bytes = TakeLaidOut(carver, [&](Carver& region) {
    outputs.scores.clear();
    outputs.experts_used = region.Take<int32_t>(num_layers);
    outputs.next = LayOutSampleResults(NextCapacity(limits), region);
    outputs.trees = LayOutTreeNodes(trees, region);
    outputs.ends = {region.used()};
    for (int64_t i = 0; i < MaxScoreBlocks(limits); ++i) {
      outputs.scores.push_back(LayOutSampleResults(ScoreCapacity(limits), region));
      outputs.ends.push_back(region.used());
    }
  });
  return outputs;
}

DraftInputs LayOutDraftInputs(const SampleCapacity& capacity, int32_t num_states, Carver& carver) {
  DraftInputs inputs;
  inputs.bytes = TakeLaidOut(carver, [&](Carver& region) {
    inputs.sampling = LayOutSampleInputs(capacity, region);
    inputs.wanted = region.Take<int32_t>(capacity.rows);
    inputs.state_of = region.Take<int32_t>(num_states);
  });
  return inputs;
}

void LayOutDrafts(const RunnerLimits& limits, Carver& device, Carver& host, StepMemory& memory) {
  if (memory.num_draft_rows == 0) return;
  const SampleCapacity capacity = DraftCapacity(limits, memory.num_draft_rows);
  const bool is_apart = &device != &host;
  memory.device_draft = LayOutDraftInputs(capacity, memory.num_step_states, device);
  memory.device_tops = LayOutSampleResults(capacity, device);
  memory.host_draft =
      is_apart ? LayOutDraftInputs(capacity, memory.num_step_states, host) : memory.device_draft;
  memory.host_tops = is_apart ? LayOutSampleResults(capacity, host) : memory.device_tops;
}

void MakePackers(const RunnerLimits& limits, StepMemory& memory) {
  for (Bucket& bucket : memory.buckets) {
    bucket.next = {.rows = bucket.host.logit_rows,
                   .packer = SamplePacker(NextCapacity(limits), bucket.host.sampling)};
  }
  for (const ScoreInputs& block : memory.host_rare.scores) {
    memory.scores.push_back(
        {.rows = block.rows, .packer = SamplePacker(ScoreCapacity(limits), block.sampling)});
  }
  if (memory.num_draft_rows > 0) {
    memory.draft_tops.emplace(DraftCapacity(limits, memory.num_draft_rows),
                              memory.host_draft.sampling);
  }
}

// What the host alone fills and reads.
void LayOutHost(const RunnerLimits& limits, Carver& host, StepMemory& memory) {
  int64_t rows = 0;
  for (const Bucket& bucket : memory.buckets) rows = std::max<int64_t>(rows, bucket.size.num_seqs);
  memory.seqs = host.Take<SequenceStep>(rows);
  memory.uses = host.Take<RowUse>(rows);
  memory.carriers = host.Take<SequenceStep>(rows);
  memory.carrier_uses = host.Take<RowUse>(rows);
  memory.results = StepResults(limits, host);
}

// ---- Tables and workspace ----

// Rows of pages for all buckets, and every bucket's plan.
void LayOutPlans(const RunnerLimits& limits, const StepLayout& layout, Carver& device, Carver& host,
                 StepMemory& memory) {
  const PageCount width = limits.page_size.PagesFor(limits.context + limits.max_tree_nodes);
  memory.page_rows = {.num_rows = limits.max_seqs,
                      .width = width,
                      .pages = device.Take<PageId>(PageRows::Entries(limits.max_seqs, width))};
  for (size_t i = 0; i < memory.buckets.size(); ++i) {
    layout.plan(i, memory.buckets[i], memory.page_rows, device, host);
  }
  for (size_t i = 0; i < memory.heads.size(); ++i) {
    const Bucket& head = memory.heads[i];
    if (head.draft_rows == 0) continue;
    layout.plan(memory.buckets.size() + i, head, memory.page_rows, device, host);
  }
}

int64_t LayerInputWidth(const EagleConfig& head) {
  return std::ssize(head.wanted_layers) * head.layer.hidden_size;
}

// What a head takes of the model's layers stays until the pass is over.
void LayOutLayerInputs(const EagleConfig& head, const StepLayout& layout, Carver& region,
                       Bucket& bucket) {
  const int64_t width = LayerInputWidth(head);
  const auto take = [&] {
    return region.TakeTensor(layout.activation, {bucket.size.num_tokens.raw(), width});
  };
  bucket.layer_inputs = take();
  if (head.input_norms) bucket.normed_inputs = take();
}

void LayOutActivations(const ModelConfig& config, const RunnerOptions& options,
                       const StepLayout& layout, Carver& device, StepMemory& memory) {
  const size_t num_buckets = memory.buckets.size();
  const EagleConfig* const head = options.head != nullptr ? options.head->config.get() : nullptr;
  const auto lay_out = [&](size_t i, Carver& region) {
    const bool is_head = i >= num_buckets;
    Bucket& bucket = is_head ? memory.heads[i - num_buckets] : memory.buckets[i];
    if (is_head && bucket.draft_rows == 0) return;
    const ModelConfig& model = is_head ? head->layer : config;
    OpLimits ops = OpLimitsOf(model, bucket.capacity, bucket.work, bucket.expanded_keys);
    ops.tokens_of_rank = MostTokens(memory.buckets);  // other ranks may be at another bucket
    ops.logit_rows = layout.logit_rows;
    // Of a head the keys' product reads joined rows, beside the queries' where there is a branch.
    if (is_head && !config.shard.is_cut()) ops.widest_side_input = 2 * model.hidden_size;
    if (head != nullptr && !is_head && MultipliesCodes(head->layer)) {
      // The pass ends with EagleHead::Fuse.
      ops.has_block_scales = true;
      ops.widest_input = std::max(ops.widest_input, LayerInputWidth(*head));
    }
    bucket.forward = LayOutForward(model, bucket.capacity, layout.activation, region);
    layout.ops(i, ops, region);
    if (head != nullptr && !is_head) LayOutLayerInputs(*head, layout, region, bucket);
    memory.attention_bytes = Max(memory.attention_bytes, layout.attention(ops));
    const ByteOffset chosen(bucket.capacity.query_tokens.raw() * ops.index.top_k * 4);
    memory.selection_bytes = Max(memory.selection_bytes, chosen + layout.selection(ops));
  };
  memory.activations = TakeShared(device, num_buckets + memory.heads.size(), lay_out);
}

void LayOutWorkspace(const ModelConfig& config, const RunnerLimits& limits,
                     const RunnerOptions& options, const StepLayout& layout, Carver& device,
                     StepMemory& memory) {
  const int64_t rows = layout.logit_rows;
  memory.picked = device.TakeTensor(DType::kF32, {rows, config.hidden_size});
  memory.normed = device.TakeTensor(layout.activation, {rows, config.hidden_size});
  memory.logits = device.TakeTensor(DType::kF32, {rows, config.vocab_size});
  // Stores move their rows one after the other.
  const int64_t most_rows =
      std::max(limits.page_size.TokensIn(PageCount(limits.max_seqs)).raw(), MaxMoves(limits));
  ByteOffset move_bytes{0};
  for (const KvLayout& kv : StoreLayouts(config, options)) {
    move_bytes = Max(move_bytes, StoreMoveWorkspace(kv, most_rows));
  }
  memory.copy_rows = device.TakeBytes(move_bytes);
  if (options.draft_layer) {
    // One that a sequence keeps from step to step, and those of its rows.
    const int32_t kept = memory.num_draft_rows > 0 ? limits.max_seqs : 0;
    memory.first_row_state = memory.num_step_states + kept;
    const int64_t num_states = int64_t{memory.first_row_state} + memory.num_draft_rows;
    memory.states = device.TakeTensor(layout.activation, {num_states, config.hidden_size});
  }
  layout.more(device);
}

}  // namespace

// A tree has no more nodes, and drafting no more rows, than slots.
GrowthRoom GrowthRoomOf(const RunnerLimits& limits, const RunnerOptions& options) {
  if (!options.draft_layer || options.draft_branches == 0) return {};
  return {.growths = limits.max_seqs,
          .branches = options.draft_branches,
          .nodes = static_cast<int32_t>(limits.max_tree_nodes.raw())};
}

int64_t MaxMoves(const RunnerLimits& limits) {
  return (limits.max_tree_nodes * limits.max_seqs).raw();
}

StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, const StepLayout& layout, Carver& device,
                       Carver& host) {
  QUIRE_CHECK(device.counting() == host.counting());
  const bool is_apart = &device != &host;
  StepMemory memory;
  if (options.draft_layer) memory.num_draft_rows = limits.max_seqs * options.draft_branches;
  memory.buckets = MakeBucketList(limits, layout, memory.num_draft_rows);
  if (options.draft_layer) memory.num_step_states = MostTokens(memory.buckets);
  if (options.head != nullptr) memory.heads = MakeHeadList(memory.buckets, layout);
  const ByteOffset begin = device.used();
  memory.device_rare = LayOutRare(limits, device);
  memory.host_rare = is_apart ? LayOutRare(limits, host) : memory.device_rare;
  const GrowthRoom trees = is_apart ? GrowthRoomOf(limits, options) : GrowthRoom{};
  memory.device_outputs = LayOutOutputs(limits, trees, config.num_layers(), device);
  memory.host_outputs =
      is_apart ? LayOutOutputs(limits, trees, config.num_layers(), host) : memory.device_outputs;
  LayOutDrafts(limits, device, host, memory);
  LayOutHost(limits, host, memory);
  const ByteOffset tables_begin = device.used();
  LayOutPlans(limits, layout, device, host, memory);
  LayOutInputs(limits, memory.device_rare, &Bucket::device, device, memory.buckets);
  if (is_apart) {
    LayOutInputs(limits, memory.host_rare, &Bucket::host, host, memory.buckets);
  } else {
    for (Bucket& bucket : memory.buckets) bucket.host = bucket.device;
  }
  const ByteOffset tables_end = device.used();
  LayOutActivations(config, options, layout, device, memory);
  LayOutWorkspace(config, limits, options, layout, device, memory);
  memory.table_bytes = tables_end - tables_begin;
  memory.expanded_bytes = layout.expanded_key_bytes * layout.expanded_keys.raw();
  memory.workspace_bytes = device.used() - begin - memory.table_bytes;
  if (!device.counting()) MakePackers(limits, memory);
  return memory;
}

}  // namespace quire
