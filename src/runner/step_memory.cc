#include "runner/step_memory.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/mla_attention.h"
#include "kernels/store.h"
#include "runner/kv_stores.h"

namespace quire {
namespace {

StepInputs LayOutInputs(const BucketSize& size, Carver& carver) {
  const int64_t tokens = size.num_tokens.raw();
  return {.tokens = carver.Take<int32_t>(tokens),
          .positions = carver.Take<TokenCount>(tokens),
          .slots = carver.Take<Slot>(tokens),
          .seqs = carver.Take<SequenceStep>(size.num_seqs)};
}

PageRows LayOutRows(const RunnerLimits& limits, Carver& carver) {
  const PageCount width = limits.page_size.PagesFor(limits.context + limits.max_tree_nodes);
  return {.num_rows = limits.max_seqs,
          .width = width,
          .pages = carver.Take<PageId>(PageRows::Entries(limits.max_seqs, width))};
}

// Rows of pages for all buckets; plans and inputs, of each bucket its own.
void LayOutTables(const RunnerLimits& limits, const WorkShape& work,
                  std::span<const BucketSize> sizes, Carver& carver, StepMemory& memory) {
  memory.page_rows = LayOutRows(limits, carver);
  for (const BucketSize& size : sizes) {
    Bucket bucket{.size = size, .capacity = CapacityOfBucket(size, limits)};
    bucket.inputs = LayOutInputs(size, carver);
    if (carver.counting()) {
      carver.TakeBytes(PlanStorageBytes(bucket.capacity, work));
    } else {
      bucket.plans = std::make_unique<PlanStorage>(bucket.capacity, work, memory.page_rows, carver);
    }
    memory.buckets.push_back(std::move(bucket));
  }
}

// One region, as large as the largest bucket needs; every bucket lays its buffers out from its
// beginning, so a bucket's addresses never change.
void LayOutActivations(const ModelConfig& config, const WorkShape& work, Carver& carver,
                       StepMemory& memory) {
  const auto lay_out = [&](Bucket& bucket, Carver& region) {
    bucket.forward = LayOutForward(config, bucket.capacity, DType::kF32, region);
    bucket.scratch = cpu::LayOutOps(OpLimitsOf(config, bucket.capacity, work), region);
  };
  ByteOffset largest{0};
  for (Bucket& bucket : memory.buckets) {
    Carver counter;
    lay_out(bucket, counter);
    largest = Max(largest, counter.used());
  }
  memory.activations = carver.TakeBytes(largest);
  if (carver.counting()) return;
  for (Bucket& bucket : memory.buckets) {
    Carver region(memory.activations);
    lay_out(bucket, region);
  }
}

void LayOutLogits(const ModelConfig& config, const RunnerLimits& limits, Carver& carver,
                  StepMemory& memory) {
  const int64_t max_rows = limits.max_step_tokens.raw();
  const int64_t block = std::min(kLogitBlock, max_rows);
  memory.picked = carver.TakeTensor(DType::kF32, {block, config.hidden_size});
  memory.normed = carver.TakeTensor(DType::kF32, {block, config.hidden_size});
  memory.logits = carver.TakeTensor(DType::kF32, {block, config.vocab_size});
}

std::optional<SampledRows> LayOutSampled(const SampleCapacity& capacity, Carver& carver) {
  const std::span<int32_t> rows = carver.Take<int32_t>(capacity.rows);
  const SampleInputs inputs = LayOutSampleInputs(capacity, carver);
  if (carver.counting()) return std::nullopt;
  return SampledRows{.rows = rows, .packer = SamplePacker(capacity, inputs)};
}

void LayOutSampling(const RunnerLimits& limits, int32_t num_threads, Carver& carver,
                    StepMemory& memory) {
  memory.next = LayOutSampled(NextCapacity(limits), carver);
  memory.next_results = LayOutSampleResults(NextCapacity(limits), carver);
  for (int64_t i = 0; i < MaxScoreBlocks(limits); ++i) {
    std::optional<SampledRows> block = LayOutSampled(ScoreCapacity(limits), carver);
    if (block) memory.scores.push_back(std::move(*block));
    memory.score_results.push_back(LayOutSampleResults(ScoreCapacity(limits), carver));
  }
  memory.sample_workers = LayOutSampleWorkers(limits.vocab_size, num_threads, carver);
  memory.results = StepResults(limits, carver);
}

// A page per sequence at most.
void LayOutCopies(const ModelConfig& config, const RunnerLimits& limits, KvFormat format,
                  Carver& carver, StepMemory& memory) {
  const int64_t rows = limits.page_size.TokensIn(PageCount(limits.max_seqs)).raw();
  const KvLayout layout(format, AttentionShape(config).dims, limits.page_size);
  memory.copy_from = carver.Take<Slot>(rows);
  memory.copy_to = carver.Take<Slot>(rows);
  memory.copy_rows = carver.TakeBytes(StoreMoveWorkspace(layout, rows));
}

}  // namespace

StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, Carver& carver) {
  const WorkShape work = cpu::MlaWorkShape(AttentionShape(config), options.num_threads);
  const std::vector<BucketSize> sizes =
      MakeBuckets(options.mode, limits.max_seqs, limits.max_step_tokens);
  StepMemory memory;
  const ByteOffset begin = carver.used();
  LayOutTables(limits, work, sizes, carver, memory);
  const ByteOffset tables_end = carver.used();
  LayOutActivations(config, work, carver, memory);
  LayOutLogits(config, limits, carver, memory);
  LayOutSampling(limits, options.num_threads, carver, memory);
  LayOutCopies(config, limits, options.kv_format, carver, memory);
  memory.table_bytes = tables_end - begin;
  memory.workspace_bytes = carver.used() - tables_end;
  return memory;
}

}  // namespace quire
