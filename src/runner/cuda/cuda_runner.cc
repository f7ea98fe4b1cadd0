#include "runner/cuda/cuda_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "device/thread_pool.h"
#include "kernels/cuda/mla_attention.h"
#include "kernels/cuda/store.h"
#include "kernels/cuda/weight_packer.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/batch_checks.h"
#include "runner/kv_stores.h"

namespace quire::cuda {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

ByteOffset PinnedBytes(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, int32_t num_sms) {
  Carver device, pinned;
  LayOutSteps(config, limits, options, num_sms, device, pinned);
  return pinned.used();
}

// Zeros: rows of the cache that were never written are read as numbers.
DeviceBuffer ZeroedArena(ByteOffset bytes) {
  DeviceBuffer arena("the runner's memory", bytes);
  FillAndWait(arena.bytes(), 0, "zeros for the runner's memory");
  return arena;
}

Model LoadModel(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                TokenCount context, Carver& carver, const LoadProgress& progress) {
  ThreadPool threads(options.num_threads);
  CudaWeightPacker packer(carver, threads, progress);
  ModelWeights weights = LoadWeights(config, source, packer);
  const RopeAngles angles = MakeRopeAngles(config, context, packer);
  packer.Finish();
  return Model(config, std::move(weights), angles);
}

}  // namespace

CudaRunner::CudaRunner(const ModelConfig& config, WeightSource& source,
                       const RunnerOptions& options, const MemoryPlan& plan,
                       const LoadProgress& progress)
    : options_(options),
      plan_(plan),
      properties_(QueryDevice()),
      arena_(ZeroedArena(plan.arena())),
      pinned_("steps, on their way",
              PinnedBytes(config, plan.limits, options, properties_.num_sms)),
      carver_(DeviceCarver(arena_)),
      model_(LoadModel(config, source, options, plan.limits.context, carver_, progress)),
      stores_(LayOutStores(config, plan.limits, options, carver_)),
      memory_([&] {
        Carver pinned(pinned_.bytes());
        return LayOutSteps(config, plan.limits, options, properties_.num_sms, carver_, pinned);
      }()),
      gemms_(options.deterministic ? GemmBackend::kTiles : GemmBackend::kCublasLt, memory_.gemm,
             memory_.side_gemm),
      book_(plan.limits.max_seqs, memory_.page_rows.width) {
  QUIRE_CHECK(carver_.used() == plan.arena(), "{} bytes laid out, {} planned", carver_.used(),
              plan.arena());
  size_t most_rows = 0;
  for (const Bucket& bucket : memory_.buckets) {
    bucket_sizes_.push_back(bucket.size);
    most_rows = std::max(most_rows, Size(bucket.size.num_seqs));
  }
  for (Bucket& bucket : memory_.buckets) {
    bucket.ops = std::make_unique<CudaOps>(
        bucket.scratch, OpDevice{.stream = stream_,
                                 .branch = branch_,
                                 .gemms = gemms_,
                                 .status = status_.word(),
                                 .live = {.count = bucket.device.live_tokens.data()}});
  }
  for (auto* seqs : {&seqs_, &carriers_}) seqs->resize(most_rows);
  for (auto* uses : {&uses_, &carrier_uses_}) uses->resize(most_rows);
  // The default stream may still copy what was given to it, and ours does not wait for it.
  Check(cudaStreamSynchronize(nullptr), "loading the model");
  PlanProducts();
  PrepareBuckets();
  const ByteOffset used = properties_.memory - Min(FreeDeviceMemory(), properties_.memory);
  plan_.outside = used - Min(arena_.size(), used);
}

// What the device still does reads memory that is about to go.
CudaRunner::~CudaRunner() { WaitQuietly(); }

// ---- Getting ready ----

// The algorithm of every product that a step can have, before the first of them.
void CudaRunner::PlanProducts() {
  for (const Bucket& bucket : memory_.buckets) {
    ProductPlanningOps planning(bucket.scratch, gemms_);
    model_.Forward(ForwardOf(bucket), planning);
    model_.Logits(LogitsOf(bucket, bucket.device.logit_rows), planning);
    model_.Logits(LogitsOf(bucket, memory_.device_rare.scores.front().rows), planning);
  }
}

// The largest first: what graphs need beside the arena is then taken once.
void CudaRunner::PrepareBuckets() {
  std::vector<Bucket*> by_size;
  for (Bucket& bucket : memory_.buckets) by_size.push_back(&bucket);
  std::ranges::stable_sort(by_size, [](const Bucket* a, const Bucket* b) {
    return a->size.num_tokens > b->size.num_tokens;
  });
  for (Bucket* bucket : by_size) PrepareBucket(*bucket);
  LaunchAllOnce();
  stream_.Synchronize();
  status_.ThrowIfReported();
}

// Runs it, on nothing but padding: CUDA loads a kernel when it is first launched, and a recording is
// no place for that.
void CudaRunner::PrepareBucket(Bucket& bucket) {
  batch_ = {};
  memory_.results.Pick(batch_, *bucket.next, memory_.scores);
  PackBucket(bucket);
  PackPlan(bucket);
  Upload(bucket);
  bucket.plan->Upload(stream_);
  LaunchBucket(bucket);
  stream_.Synchronize();
  if (options_.mode == StepMode::kGraph) {
    bucket.graph.emplace(Graph::Capture(stream_, [&] { LaunchBucket(bucket); }));
  }
}

// The kernels of what only some steps have, with nothing to do.
void CudaRunner::LaunchAllOnce() {
  const Bucket& bucket = memory_.buckets.front();
  model_.Logits(LogitsOf(bucket, memory_.device_rare.scores.front().rows), *bucket.ops);
  SampleCapacity capacity = NextCapacity(plan_.limits);
  capacity.rows = 1;
  Sample(SampleOf(capacity, bucket.device.sampling, memory_.device_results.next, SampleWork::kAll),
         stream_);
  // From the scratch page to itself: zeros are a slot of it, and what is written there is dropped.
  for (const KvStore& store : stores_) {
    StoreMove({.store = store,
               .from = memory_.device_rare.copy_from.first(1),
               .to = memory_.device_rare.copy_to.first(1),
               .workspace = memory_.copy_rows},
              stream_, status_.word());
  }
  Download();
}

ForwardArgs CudaRunner::ForwardOf(const Bucket& bucket) const {
  return {.tokens = bucket.device.tokens,
          .positions = bucket.device.positions,
          .slots = bucket.device.slots,
          .plan = bucket.plan->plan(),
          .stores = stores_,
          .buffers = bucket.forward,
          .experts_used = memory_.device_results.experts_used};
}

LogitsArgs CudaRunner::LogitsOf(const Bucket& bucket, std::span<const int32_t> rows) const {
  const int64_t num_rows = std::ssize(rows);
  return {.hidden = bucket.forward.hidden,
          .rows = rows,
          .picked = memory_.picked.FirstRows(num_rows),
          .normed = memory_.normed.FirstRows(num_rows),
          .logits = memory_.logits.FirstRows(num_rows)};
}

SampleArgs CudaRunner::SampleOf(const SampleCapacity& capacity, const SampleInputs& inputs,
                                const SampleResults& results, SampleWork work) const {
  return {.capacity = capacity,
          .logits = memory_.logits.FirstRows(capacity.rows),
          .inputs = inputs,
          .scratch = memory_.sample_scratch,
          .results = results,
          .work = work,
          .status = status_.word()};
}

// ---- A device that is lost ----

void CudaRunner::ThrowIfLost() const {
  if (lost_) throw DeviceError(*lost_);
}

void CudaRunner::Remember(const DeviceError& error) {
  if (error.is_sticky()) lost_ = error;
}

// For all that was launched, well or not. A pass that failed may have left its branch unjoined.
void CudaRunner::WaitQuietly() {
  if (lost_) return;
  cudaStreamSynchronize(stream_.get());
  cudaStreamSynchronize(branch_.stream().get());
}

// ---- A step ----

void CudaRunner::Submit(const StepBatch& batch) {
  ThrowIfLost();
  const PageCount looked_at = CheckBatch(batch, plan_.limits);
  QUIRE_CHECK(!is_running_, "a step is still to be collected");
  stats_.pages_looked_at = looked_at;
  try {
    Start(batch);
    is_running_ = true;
  } catch (...) {
    try {
      throw;
    } catch (const DeviceError& error) {
      Remember(error);
    } catch (...) {  // ours: the device is well
    }
    book_.ForgetPages();  // a step that was packed may not have been launched
    WaitQuietly();        // what was launched reads pinned memory
    throw;
  }
}

// What can be wrong with a batch is found by Pick and PackPlan, before anything is launched.
void CudaRunner::Start(const StepBatch& batch) {
  const Clock::time_point begin = Clock::now();
  batch_ = batch;
  const TokenCount num_tokens = NumTokens(batch);
  const auto num_seqs = static_cast<int32_t>(batch.sequences.size());
  stats_.bucket = ChooseBucket(bucket_sizes_, num_seqs, num_tokens);
  Bucket& bucket = memory_.buckets[stats_.bucket];
  stats_.padded_rows = bucket.size.num_seqs - num_seqs;
  stats_.padded_tokens = bucket.size.num_tokens - num_tokens;
  stats_.copied_pages = static_cast<int32_t>(batch.copies.size());
  memory_.results.Pick(batch, *bucket.next, memory_.scores);
  stats_.logit_rows = memory_.results.num_rows();
  PackBucket(bucket);
  if (timing_) {
    timing_->host_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    timing_->begin.Record(stream_);
  }
  PackPlan(bucket);
  if (options_.checks == StepChecks::kPoison) Poison();
  CopyPages();
  Upload(bucket);
  bucket.plan->Upload(stream_);
  if (timing_) timing_->planned.Record(stream_);
  if (timing_) {
    LaunchTimed(bucket);
  } else {
    bucket.graph ? bucket.graph->Launch(stream_) : LaunchBucket(bucket);
  }
  if (timing_) timing_->computed.Record(stream_);
  LaunchNext(bucket);
  LaunchScores(bucket);
  if (timing_) timing_->sampled.Record(stream_);
  Download();
}

void CudaRunner::PackBucket(Bucket& bucket) {
  const StepInputs inputs{.tokens = bucket.pinned.tokens,
                          .positions = bucket.pinned.positions,
                          .slots = bucket.pinned.slots,
                          .seqs = seqs_};
  Pack(batch_, plan_.limits.page_size, inputs);
  bucket.pinned.live_tokens[0] = static_cast<int32_t>(NumTokens(batch_).raw());
  PadTo(bucket.size, plan_.limits.page_size, batch_.sequences.size(), NumTokens(batch_), inputs);
}

// ---- Pages ----

void CudaRunner::PackPlan(Bucket& bucket) {
  const size_t num_seqs = batch_.sequences.size();
  const auto seqs = std::span<const SequenceStep>(seqs_).first(Size(bucket.size.num_seqs));
  const auto uses = std::span(uses_).first(seqs.size());
  std::ranges::fill(uses, RowUse{});
  book_.Assign(batch_.sequences, seqs.first(num_seqs), uses.first(num_seqs));
  BringPages(bucket, seqs.first(num_seqs), uses.first(num_seqs));
  bucket.plan->Pack(seqs, uses);
  for (size_t i = 0; i < num_seqs; ++i) book_.Set(uses[i].row, uses[i].unchanged, seqs[i].pages);
}

// Where a step has more new pages than it can bring, steps that compute nothing bring some before.
// They share the bucket's pinned memory, so each waits for the copy of the one before.
void CudaRunner::BringPages(Bucket& bucket, std::span<const SequenceStep> seqs,
                            std::span<RowUse> uses) {
  const auto missing = [&](size_t i) {
    return PageCount(seqs[i].pages.size()) - uses[i].unchanged;
  };
  PageCount left{0};
  for (size_t i = 0; i < seqs.size(); ++i) left += missing(i);
  while (left > kNewPages) {
    PageCount room = kNewPages;
    for (size_t i = 0; i < seqs.size(); ++i) {
      const PageCount taken = Min(room, missing(i));
      const PageCount end = uses[i].unchanged + taken;
      const bool brings = taken > PageCount(0);
      carriers_[i] = {.pages = brings ? seqs[i].pages.first(Size(end.raw()))
                                      : std::span<const PageId>()};
      carrier_uses_[i] = brings ? uses[i] : RowUse{};
      room -= taken;
    }
    bucket.plan->Pack(std::span(carriers_).first(seqs.size()),
                      std::span(carrier_uses_).first(seqs.size()));
    bucket.plan->Upload(stream_);
    bucket.plan->Launch(stream_, status_.word());
    for (size_t i = 0; i < seqs.size(); ++i) {
      if (carrier_uses_[i].row == kNoRow) continue;
      book_.Set(uses[i].row, uses[i].unchanged, carriers_[i].pages);
      uses[i].unchanged = PageCount(carriers_[i].pages.size());
    }
    left -= kNewPages;
  }
}

}  // namespace quire::cuda
