#include "runner/cuda/step_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/mla_attention.h"
#include "kernels/store.h"
#include "model/forward.h"
#include "runner/kv_stores.h"

namespace quire::cuda {
namespace {

// Takes a region that is as large as `lay_out` needs, and lays it out. Where `carver` counts, so does
// what is laid out.
template <class LayOut>
std::span<std::byte> TakeLaidOut(Carver& carver, MemorySide side, LayOut lay_out) {
  Carver counter;
  lay_out(counter);
  const std::span<std::byte> bytes = carver.TakeBytes(counter.used());
  if (carver.counting()) return {};
  Carver region(bytes, side);
  lay_out(region);
  return bytes;
}

// ---- Inputs and results: the same on both sides ----

BucketInputs LayOutInputs(const Bucket& bucket, const RunnerLimits& limits, const RareInputs& rare,
                          Carver& carver) {
  const int64_t tokens = bucket.size.num_tokens.raw();
  return {.tokens = carver.Take<int32_t>(tokens),
          .positions = carver.Take<TokenCount>(tokens),
          .slots = carver.Take<Slot>(tokens),
          .live_tokens = carver.Take<int32_t>(1),
          .logit_rows = carver.Take<int32_t>(bucket.head_rows),
          .sampling = {.counts = carver.Take<SampleCounts>(1),
                       .items = carver.Take<SampleItem>(limits.max_samples),
                       .biases = rare.biases,
                       .text = rare.text}};
}

RareInputs LayOutRare(const RunnerLimits& limits, Carver& carver, MemorySide side) {
  const int64_t rows = limits.page_size.TokensIn(PageCount(limits.max_seqs)).raw();
  const SampleCapacity next = NextCapacity(limits);
  RareInputs rare;
  rare.copy_from = carver.Take<Slot>(rows);
  rare.copy_to = carver.Take<Slot>(rows);
  rare.biases = carver.Take<LogitBias>(next.biases);
  rare.text = carver.Take<int32_t>(next.text);
  for (int64_t i = 0; i < MaxScoreBlocks(limits); ++i) {
    ScoreInputs block;
    block.bytes = TakeLaidOut(carver, side, [&](Carver& region) {
      block.rows = region.Take<int32_t>(kLogitBlock);
      block.sampling = LayOutSampleInputs(ScoreCapacity(limits), region);
    });
    rare.scores.push_back(std::move(block));
  }
  return rare;
}

Results LayOutResults(const RunnerLimits& limits, int64_t num_layers, Carver& carver,
                      MemorySide side) {
  Results results;
  results.bytes = TakeLaidOut(carver, side, [&](Carver& region) {
    results.scores.clear();
    results.experts_used = region.Take<int32_t>(num_layers);
    results.next = LayOutSampleResults(NextCapacity(limits), region);
    results.ends = {region.used()};
    for (int64_t i = 0; i < MaxScoreBlocks(limits); ++i) {
      results.scores.push_back(LayOutSampleResults(ScoreCapacity(limits), region));
      results.ends.push_back(region.used());
    }
  });
  return results;
}

// One region on each side, as large as the largest bucket needs; every bucket lays its inputs out
// from its beginning, so a bucket's addresses never change.
void LayOutBucketInputs(const RunnerLimits& limits, Carver& carver, MemorySide side,
                        const RareInputs& rare, BucketInputs Bucket::*where, StepMemory& memory) {
  ByteOffset largest{0};
  for (const Bucket& bucket : memory.buckets) {
    Carver counter;
    LayOutInputs(bucket, limits, rare, counter);
    largest = Max(largest, counter.used());
  }
  const std::span<std::byte> bytes = carver.TakeBytes(largest);
  if (carver.counting()) return;
  for (Bucket& bucket : memory.buckets) {
    Carver region(bytes, side);
    bucket.*where = LayOutInputs(bucket, limits, rare, region);
    (bucket.*where).bytes = bytes.first(static_cast<size_t>(region.used().raw()));
  }
}

// ---- Tables ----

void LayOutPlans(const RunnerLimits& limits, Carver& device, Carver& pinned, StepMemory& memory) {
  const PageCount width = limits.page_size.PagesFor(limits.context + limits.max_tree_nodes);
  memory.page_rows = {.num_rows = limits.max_seqs,
                      .width = width,
                      .pages = device.Take<PageId>(PageRows::Entries(limits.max_seqs, width))};
  for (Bucket& bucket : memory.buckets) {
    if (device.counting()) {
      const PlanStorageMemory need = PlanStorageBytes(bucket.capacity, bucket.work, kNewPages);
      device.TakeBytes(need.device);
      pinned.TakeBytes(need.pinned);
    } else {
      bucket.plan = std::make_unique<PlanStorage>(bucket.capacity, bucket.work, kNewPages,
                                                  memory.page_rows, device, pinned);
    }
  }
}

void MakePackers(const RunnerLimits& limits, StepMemory& memory) {
  for (Bucket& bucket : memory.buckets) {
    bucket.next = {.rows = bucket.pinned.logit_rows,
                   .packer = SamplePacker(NextCapacity(limits), bucket.pinned.sampling)};
  }
  for (const ScoreInputs& block : memory.pinned_rare.scores) {
    memory.scores.push_back(
        {.rows = block.rows, .packer = SamplePacker(ScoreCapacity(limits), block.sampling)});
  }
}

// ---- Workspace ----

void LayOutActivations(const ModelConfig& config, Carver& device, StepMemory& memory) {
  const auto lay_out = [&](Bucket& bucket, Carver& region) {
    bucket.forward = LayOutForward(config, bucket.capacity, DType::kBf16, region);
    bucket.scratch = LayOutOps(OpLimitsOf(config, bucket.capacity, bucket.work), region);
  };
  ByteOffset largest{0};
  for (Bucket& bucket : memory.buckets) {
    Carver counter;
    lay_out(bucket, counter);
    largest = Max(largest, counter.used());
  }
  memory.activations = device.TakeBytes(largest);
  if (device.counting()) return;
  for (Bucket& bucket : memory.buckets) {
    Carver region(memory.activations, MemorySide::kDevice);
    lay_out(bucket, region);
  }
}

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

void LayOutWorkspace(const ModelConfig& config, const RunnerLimits& limits,
                     const RunnerOptions& options, Carver& device, StepMemory& memory) {
  const int64_t rows = LogitRows(limits);
  memory.picked = device.TakeTensor(DType::kF32, {rows, config.hidden_size});
  memory.normed = device.TakeTensor(DType::kBf16, {rows, config.hidden_size});
  memory.logits = device.TakeTensor(DType::kF32, {rows, config.vocab_size});
  SampleCapacity sampled = NextCapacity(limits);
  sampled.rows = static_cast<int32_t>(rows);  // those of a block of scores fit too
  memory.sample_scratch = LayOutSampleScratch(sampled, device);
  const KvLayout layout(options.kv_format, AttentionShape(config).dims, limits.page_size);
  memory.copy_rows = device.TakeBytes(
      StoreMoveWorkspace(layout, limits.page_size.TokensIn(PageCount(limits.max_seqs)).raw()));
  if (options.deterministic) return;
  memory.gemm = TakeGemmWorkspace(device);
  memory.side_gemm = TakeGemmWorkspace(device);
}

}  // namespace

int64_t LogitRows(const RunnerLimits& limits) {
  return std::max<int64_t>(kLogitBlock, MaxNextRows(limits));
}

StepMemory LayOutSteps(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, int32_t num_sms, Carver& device,
                       Carver& pinned) {
  QUIRE_CHECK(device.counting() == pinned.counting());
  ValidateForDevice(NextCapacity(limits));
  StepMemory memory;
  // The same buckets in both modes: an eager step launches what the graph of its bucket holds.
  for (const BucketSize& size :
       MakeBuckets(StepMode::kGraph, limits.max_seqs, limits.max_step_tokens)) {
    Bucket bucket;
    bucket.size = size;
    bucket.capacity = CapacityOfBucket(size, limits);
    bucket.work =
        MlaWorkShape(AttentionShape(config), options.kv_format, num_sms,
                     size.is_decode ? MlaStep::kDecode : MlaStep::kAny, options.deterministic);
    // With trees any token may be one of which tokens are drawn.
    const bool has_trees = limits.max_tree_nodes > TokenCount(0) && !size.is_decode;
    bucket.head_rows = static_cast<int32_t>(
        std::min<int64_t>(has_trees ? size.num_tokens.raw() : size.num_seqs, MaxNextRows(limits)));
    memory.buckets.push_back(std::move(bucket));
  }
  const ByteOffset begin = device.used();
  LayOutPlans(limits, device, pinned, memory);
  memory.device_rare = LayOutRare(limits, device, MemorySide::kDevice);
  memory.pinned_rare = LayOutRare(limits, pinned, MemorySide::kHost);
  LayOutBucketInputs(limits, device, MemorySide::kDevice, memory.device_rare, &Bucket::device,
                     memory);
  LayOutBucketInputs(limits, pinned, MemorySide::kHost, memory.pinned_rare, &Bucket::pinned,
                     memory);
  memory.device_results = LayOutResults(limits, config.num_layers(), device, MemorySide::kDevice);
  memory.pinned_results = LayOutResults(limits, config.num_layers(), pinned, MemorySide::kHost);
  memory.results = StepResults(limits, pinned);
  const ByteOffset tables_end = device.used();
  LayOutActivations(config, device, memory);
  LayOutWorkspace(config, limits, options, device, memory);
  memory.table_bytes = tables_end - begin;
  memory.workspace_bytes = device.used() - tables_end;
  if (!device.counting()) MakePackers(limits, memory);
  return memory;
}

}  // namespace quire::cuda
