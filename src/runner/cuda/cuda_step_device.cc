#include "runner/cuda/cuda_step_device.h"

#include <algorithm>
#include <utility>

#include "device/thread_pool.h"
#include "kernels/cuda/store/store.h"
#include "kernels/cuda/weight_packer.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/kv_stores.h"
#include "runner/logit_rows.h"
#include "runner/plan_parts.h"

namespace quire::cuda {
namespace {

// Whether kernels of a step overlap: decode steps do, and others of few tokens, which verify drafts. Larger ones, and
// prompts, gain nothing or lose by it: their products are cuBLASLt's. Of a model in fp8 those of more than 16 tokens
// lose, too: its products fill a multiprocessor each, and whoever comes early waits in their place.
bool Overlaps(const BucketSize& size, const ModelConfig& config) {
  constexpr TokenCount kMostRows{64}, kMostTokens{16};
  return size.num_tokens <= (size.is_decode && !MultipliesCodes(config) ? kMostRows : kMostTokens);
}

// Asked before a model is loaded, which takes minutes: without what its products need there is an Error.
GemmBackend BackendFor(const RunnerOptions& options) {
  const auto backend = options.deterministic ? GemmBackend::kExact : GemmBackend::kCublasLt;
  RequireBackend(backend);
  return backend;
}

size_t Index(int64_t n) { return static_cast<size_t>(n); }

// Zeros: rows of the cache that were never written are read as numbers.
DeviceBuffer ZeroedArena(ByteOffset bytes) {
  DeviceBuffer arena("the runner's memory", bytes);
  FillAndWait(arena.bytes(), 0, "zeros for the runner's memory");
  return arena;
}

ByteOffset PinnedBytes(const ModelConfig& config, const RunnerLimits& limits,
                       const RunnerOptions& options, const MlaRoom& room) {
  Carver device, pinned;
  CudaStepParts parts;
  LayOutCudaSteps(config, limits, options, room, parts, device, pinned);
  return pinned.used();
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

// None where no head is to draft.
std::optional<EagleHead> LoadHead(const RunnerOptions& options, const MemoryPlan& plan,
                                  const Weight& embedding, Carver& carver,
                                  const LoadProgress& progress) {
  if (options.head == nullptr) return std::nullopt;
  const auto loaded = [&](ByteOffset of_head) {
    if (progress) progress(Min(plan.weights - plan.draft_weights + of_head, plan.weights));
  };
  ThreadPool threads(options.num_threads);
  CudaWeightPacker packer(carver, threads, loaded);
  return LoadEagleHead(*options.head, embedding, plan.limits.context, packer);
}

// The first `count` elements.
template <class T>
void CopyFirst(std::span<T> device, std::span<T> pinned, size_t count, const char* what,
               const Stream& stream) {
  CopyToDevice(std::as_writable_bytes(device), std::as_bytes(pinned.first(count)), what, stream);
}

void Fill(std::span<std::byte> device, int value, const Stream& stream) {
  Check(cudaMemsetAsync(device.data(), value, device.size(), stream.get()), "poison");
}

}  // namespace

CudaStepDevice::CudaStepDevice(const ModelConfig& model, WeightSource& source,
                               const RunnerOptions& options, const MemoryPlan& plan,
                               const LoadProgress& progress, CudaRank rank)
    : options_(options),
      config_(CudaConfigFor(model, options)),
      limits_(plan.limits),
      device_(CurrentDevice()),
      properties_(QueryDevice()),
      gemm_backend_(BackendFor(options)),
      rank_(std::move(rank)),
      arena_(ZeroedArena(plan.arena())),
      pinned_("steps, on their way", PinnedBytes(config_, plan.limits, options, QueryMlaRoom())),
      carver_(DeviceCarver(arena_)),
      model_(LoadModel(config_, source, options, plan.limits.context, carver_, progress)),
      head_(LoadHead(options, plan, model_.weights().embedding, carver_, progress)),
      stores_(LayOutStores(config_, plan.limits, options, carver_)),
      memory_([&] {
        Carver pinned(pinned_.bytes());
        return LayOutCudaSteps(config_, plan.limits, options, QueryMlaRoom(), parts_, carver_,
                               pinned);
      }()),
      orders_(rank_.host.get(), memory_, config_.shard.tokens),
      gemms_(gemm_backend_, parts_.gemm, parts_.side_gemm),
      work_(memory_.buckets.size()),
      deliveries_(stream_, parts_.staging) {
  stream_.set_overlaps(true);
  QUIRE_CHECK(carver_.used() == plan.arena(), "{} bytes laid out, {} planned", carver_.used(),
              plan.arena());
  for (size_t i = 0; i < work_.size(); ++i) {
    work_[i].ops = MakeOps(i, parts_.buckets[i].scratch);
    if (!head_ || memory_.heads[i].draft_rows == 0) continue;
    work_[i].head_ops = MakeOps(i, parts_.buckets[work_.size() + i].scratch);
  }
  UploadTokenIds();
  Check(cudaMemset(parts_.router_arrived.data(), 0, parts_.router_arrived.size_bytes()),
        "counts of arrivals");
  // The default stream may still copy what was given to it, and ours does not wait for it.
  Check(cudaStreamSynchronize(nullptr), "loading the model");
  if (rank_.device != nullptr) rank_.device->TakeStaging(parts_.gathers);
  PlanProducts();
}

// Ranks with tokens of their own go one after the other, when all have ended their last step: none may wait for
// the others, as the end of a group of NCCL does. A recording has its calls in it, and goes first.
CudaStepDevice::~CudaStepDevice() {
  if (config_.shard.tokens != RankTokens::kOwn) return;
  work_.clear();
  rank_.device->Abort();
}

std::unique_ptr<CudaOps> CudaStepDevice::MakeOps(size_t bucket, const OpScratch& scratch) {
  return std::make_unique<CudaOps>(
      scratch, OpDevice{.stream = stream_,
                        .branch = branch_,
                        .gemms = gemms_,
                        .status = status_.word(),
                        .live = {.count = memory_.buckets[bucket].device.live_tokens.data()},
                        .router_arrived = parts_.router_arrived,
                        .ranks = rank_.device.get(),
                        .tokens = config_.shard.tokens});
}

// Where trees grow: the host translates what it is brought itself.
void CudaStepDevice::UploadTokenIds() {
  if (parts_.token_ids.empty()) return;
  const std::span<const std::byte> ids = std::as_bytes(draft_token_ids());
  QUIRE_CHECK(ids.size() == parts_.token_ids.size_bytes(), "{} bytes of tokens", ids.size());
  Check(cudaMemcpy(parts_.token_ids.data(), ids.data(), ids.size(), cudaMemcpyHostToDevice),
        "tokens of a head");
}

// ---- Getting ready ----

// The algorithm of every product that a step can have, before the first of them.
void CudaStepDevice::PlanProducts() {
  for (size_t i = 0; i < memory_.buckets.size(); ++i) {
    const Bucket& bucket = memory_.buckets[i];
    ProductPlanningOps planning(parts_.buckets[i].scratch, gemms_);
    model_.Forward(ForwardOf(i), planning);
    FuseStates(i, planning);
    model_.Logits(LogitsOf(bucket, bucket.device.logit_rows), planning);
    model_.Logits(LogitsOf(bucket, memory_.device_rare.scores.front().rows), planning);
    if (bucket.draft_rows == 0) continue;
    RunDraft(Drafting(), DraftOf(i), memory_, Index(bucket.draft_rows), planning,
             [](int64_t, int64_t) {});
  }
}

void CudaStepDevice::Prepare(const StepWork& work) {
  orders_.WithRanks([&] {
    orders_.Tell(StepOrder::kPrepare, work);
    PrepareNow(work);
  });
}

// Runs it once: CUDA loads a kernel when it is first launched, and a recording is no place for that.
void CudaStepDevice::PrepareNow(const StepWork& work) {
  const Bucket& bucket = memory_.buckets[work.bucket];
  PlanStorage& plan = *parts_.buckets[work.bucket].plan;
  plan.Pack(work.seqs, work.uses);
  Upload(bucket);
  BringPlan(plan);
  deliveries_.Deliver();
  const bool drafts = bucket.draft_rows > 0;
  LaunchBucket(work.bucket);
  if (drafts && head_) {
    PlanStorage& head_plan = DraftPlan(work.bucket);
    head_plan.Pack(work.seqs, work.uses);
    BringPlan(head_plan);
    deliveries_.Deliver();
  }
  if (drafts) LaunchDraft(work.bucket);
  AwaitStream();
  if (options_.mode != StepMode::kGraph) return;
  work_[work.bucket].graph = Record([&] { LaunchBucket(work.bucket); });
  if (drafts) work_[work.bucket].draft_graph = Record([&] { LaunchDraft(work.bucket); });
}

std::optional<Graph> CudaStepDevice::Record(FunctionRef<void()> work) {
  if (rank_.device != nullptr) return rank_.device->Record(stream_, work);
  std::optional<Graph> graph = Graph::Capture(stream_, work);
  graph->Upload(stream_);
  return graph;
}

void CudaStepDevice::Launch(const std::optional<Graph>& graph) {
  if (rank_.device != nullptr) {
    rank_.device->Launch(graph, stream_);
  } else {
    graph->Launch(stream_);
  }
}

void CudaStepDevice::AwaitStream() {
  done_.Record(stream_);
  AwaitDone();
}

void CudaStepDevice::AwaitDone() const {
  if (rank_.device != nullptr) {
    rank_.device->Wait(done_);
  } else {
    done_.Synchronize();
  }
}

void CudaStepDevice::Ready(MemoryPlan& plan) {
  orders_.WithRanks([&] {
    orders_.TellReady();
    ReadyNow();
  });
  const ByteOffset used = properties_.memory - Min(FreeDeviceMemory(), properties_.memory);
  const bool is_shared = rank_.device != nullptr && rank_.device->ranks_of_device() > 1;
  plan.outside = used - Min(is_shared ? plan.arena_of_all() : arena_.size(), used);
}

void CudaStepDevice::ReadyNow() {
  LaunchAllOnce();
  AwaitStream();
  status_.ThrowIfReported();
}

// The kernels of what only some steps have, with nothing to do.
void CudaStepDevice::LaunchAllOnce() {
  const Bucket& bucket = memory_.buckets.front();
  model_.Logits(LogitsOf(bucket, memory_.device_rare.scores.front().rows), *work_.front().ops);
  SampleCapacity capacity = NextCapacity(limits_);
  capacity.rows = 1;
  cuda::Sample(
      SampleOf(capacity, bucket.device.sampling, memory_.device_outputs.next, SampleWork::kAll),
      stream_);
  // From the scratch page to itself: zeros are a slot of it, and what is written there is dropped.
  for (const KvStore& store : stores_) {
    StoreMove({.store = store,
               .from = memory_.device_rare.copy_from.first(1),
               .to = memory_.device_rare.copy_to.first(1),
               .workspace = memory_.copy_rows},
              stream_, status_.word());
  }
  if (grows_trees()) GrowNothing();
  Download(0);
}

ForwardArgs CudaStepDevice::ForwardOf(size_t number) const {
  const Bucket& bucket = memory_.buckets[number];
  return {.tokens = bucket.device.tokens,
          .positions = bucket.device.positions,
          .slots = bucket.device.slots,
          .plan = parts_.buckets[number].plan->plan(),
          .stores = std::span(stores_).first(NumTrunkStores(config_)),
          .buffers = bucket.forward,
          .experts_used = memory_.device_outputs.experts_used,
          .chooses = config_.indexer.has_value(),
          .selection = parts_.buckets[number].plan->selection_plan(),
          .expansion = bucket.size.expands() ? &bucket.device.expansion : nullptr,
          .num_latent = bucket.size.num_latent.raw(),
          .states = config_.drafts ? memory_.states.FirstRows(std::ssize(bucket.device.tokens))
                                   : TensorView(),
          .wanted_layers = head_ ? head_->config().wanted_layers : std::span<const int32_t>(),
          .layer_inputs = bucket.layer_inputs};
}

void CudaStepDevice::FuseStates(size_t number, Ops& ops) const {
  if (!head_) return;
  const Bucket& bucket = memory_.buckets[number];
  head_->Fuse({.inputs = bucket.layer_inputs,
               .normed = bucket.normed_inputs,
               .states = memory_.states.FirstRows(bucket.size.num_tokens.raw())},
              ops);
}

LogitsArgs CudaStepDevice::LogitsOf(const Bucket& bucket, std::span<const int32_t> rows) const {
  const int64_t num_rows = std::ssize(rows);
  return {.hidden = bucket.forward.hidden,
          .rows = rows,
          .picked = memory_.picked.FirstRows(num_rows),
          .normed = memory_.normed.FirstRows(num_rows),
          .logits = memory_.logits.FirstRows(num_rows)};
}

SampleArgs CudaStepDevice::SampleOf(const SampleCapacity& capacity, const SampleInputs& inputs,
                                    const SampleResults& results, SampleWork work) const {
  return {.capacity = capacity,
          .logits = memory_.logits.FirstRows(capacity.rows),
          .inputs = inputs,
          .scratch = parts_.sampling,
          .results = results,
          .work = work,
          .status = status_.word()};
}

// ---- A step ----

void CudaStepDevice::BringPages(size_t bucket, std::span<const SequenceStep> seqs,
                                std::span<const RowUse> uses) {
  orders_.WithRanks([&] {
    orders_.Tell(StepOrder::kPages, {.bucket = bucket, .seqs = seqs, .uses = uses});
    BringPagesNow(bucket, seqs, uses);
  });
}

void CudaStepDevice::BringPagesNow(size_t bucket, std::span<const SequenceStep> seqs,
                                   std::span<const RowUse> uses) {
  PlanStorage& plan = *parts_.buckets[bucket].plan;
  plan.Pack(seqs, uses);
  BringPlan(plan);
  deliveries_.Deliver();
  plan.Launch(stream_, status_.word());
}

void CudaStepDevice::Bring(const StepWork& work) {
  orders_.WithRanks([&] {
    orders_.Tell(timing_ ? StepOrder::kRunTimed : StepOrder::kRun, work);
    BringNow(work);
  });
}

void CudaStepDevice::BringNow(const StepWork& work) {
  PlanStorage& plan = *parts_.buckets[work.bucket].plan;
  plan.Pack(work.seqs, work.uses);
  if (timing_) timing_->begin.Record(stream_);
  if (options_.checks == StepChecks::kPoison) Poison();
  MoveRows(std::span(stores_).first(NumTrunkStores(config_)), work.num_moves,
           &RareInputs::move_from, &RareInputs::move_to);
  MoveRows(stores_, work.num_copies, &RareInputs::copy_from, &RareInputs::copy_to);
  Upload(memory_.buckets[work.bucket]);
  BringPlan(plan);
  PlaceTrees(work);
  if (timing_) timing_->planned.Record(stream_);
}

void CudaStepDevice::Run(const StepWork& work) {
  orders_.WithRanks([&] { RunNow(work.bucket, timing_.has_value()); });
  if (!timing_) return;
  timing_->computed.Record(stream_);
  timing_->bucket = work.bucket;
}

void CudaStepDevice::RunNow(size_t bucket, bool is_timed) {
  if (is_timed) {
    LaunchTimed(bucket);
  } else if (options_.mode == StepMode::kGraph) {
    Launch(work_[bucket].graph);
  } else {
    LaunchBucket(bucket);
  }
}

void CudaStepDevice::Sample(const StepWork& work) {
  orders_.WithRanks([&] { orders_.TellLogits(work, LogitsApart::kScores); });
  UploadMasks(memory_.buckets[work.bucket]);
  SampleNext(memory_.buckets[work.bucket]);
  orders_.WithRanks([&] { SampleScores(work); });
  if (timing_) timing_->sampled.Record(stream_);
  Download(work.num_score_blocks);
}

// In every layer all sources are read before a target is written.
void CudaStepDevice::MoveRows(std::span<const KvStore> stores, size_t num_rows,
                              std::span<Slot> RareInputs::*from, std::span<Slot> RareInputs::*to) {
  if (num_rows == 0) return;
  const RareInputs& pinned = memory_.host_rare;
  const RareInputs& device = memory_.device_rare;
  CopyFirst(device.*from, pinned.*from, num_rows, "slots to copy from", stream_);
  CopyFirst(device.*to, pinned.*to, num_rows, "slots to copy to", stream_);
  for (const KvStore& store : stores) {
    StoreMove({.store = store,
               .from = (device.*from).first(num_rows),
               .to = (device.*to).first(num_rows),
               .workspace = memory_.copy_rows},
              stream_, status_.word());
  }
}

// NaN in every float.
void CudaStepDevice::Poison() {
  Fill(memory_.activations, 0xff, stream_);
  for (const TensorView& view : {memory_.logits, memory_.picked, memory_.normed}) {
    const int64_t bytes = view.dim(0) * view.dim(1) * DTypeBytes(view.dtype());
    Fill({view.data(), Index(bytes)}, 0xff, stream_);
  }
}

void CudaStepDevice::BringPlan(PlanStorage& plan) {
  if (deliveries_.has_room()) {
    deliveries_.Bring(plan.packed_on_device(), plan.packed(), "a packed step");
  } else {
    plan.Upload(stream_);
  }
}

void CudaStepDevice::Upload(const Bucket& bucket) {
  deliveries_.Bring(bucket.device.bytes, bucket.host.bytes, "a step's inputs");
  // What the items refer to, where they do.
  int64_t num_biases = 0, num_text = 0;
  for (const SampleItem& item :
       bucket.host.sampling.items.first(Index(bucket.next->packer.num_items()))) {
    num_biases = std::max<int64_t>(num_biases, item.first_bias + item.num_biases);
    num_text = std::max<int64_t>({num_text, item.first_text + item.num_prompt + item.num_output,
                                  item.first_path + item.num_path});
  }
  CopyFirst(memory_.device_rare.biases, memory_.host_rare.biases, Index(num_biases),
            "a step's biases", stream_);
  CopyFirst(memory_.device_rare.text, memory_.host_rare.text, Index(num_text), "a step's text",
            stream_);
}

// Behind the forward pass: they may have been written while it ran.
void CudaStepDevice::UploadMasks(const Bucket& bucket) {
  const int64_t words = bucket.next->packer.num_masks() * MaskWords(limits_.vocab_size);
  CopyFirst(memory_.device_rare.masks, memory_.host_rare.masks, Index(words), "a step's masks",
            stream_);
}

// What a graph records: nothing here depends on the step.
void CudaStepDevice::LaunchBucket(size_t number, PartMarks* marks) {
  CudaOps& ops = *work_[number].ops;
  const Bucket& bucket = memory_.buckets[number];
  PlanStep(number, *parts_.buckets[number].plan);
  if (marks != nullptr) marks->Begin(stream_);
  ops.MarkIn(marks);
  model_.Forward(ForwardOf(number), ops);
  FuseStates(number, ops);
  model_.Logits(LogitsOf(bucket, bucket.device.logit_rows), ops);
  ops.MarkIn(nullptr);
  stream_.set_overlaps(true);
}

// The plan, and how what follows is launched. What is launched beside passes is small, and overlaps.
void CudaStepDevice::PlanStep(size_t number, const PlanStorage& plan) {
  const BucketSize& size = memory_.buckets[number].size;
  const bool overlaps = Overlaps(size, config_);
  stream_.set_overlaps(overlaps);
  branch_.set_overlaps(overlaps);
  plan.Launch(stream_, status_.word());
}

// The marks are of one launch, or of one recording: one that failed leaves none behind.
void CudaStepDevice::LaunchTimed(size_t number) {
  BucketWork& bucket = work_[number];
  if (options_.mode == StepMode::kEager) {
    bucket.marks = {};
    LaunchBucket(number, &bucket.marks);
    return;
  }
  if (!bucket.is_timed_recorded) {
    bucket.marks = {};
    bucket.timed_graph = Record([&] { LaunchBucket(number, &bucket.marks); });
    bucket.is_timed_recorded = true;
  }
  Launch(bucket.timed_graph);
}

void CudaStepDevice::SampleNext(const Bucket& bucket) {
  const SamplePacker& packer = bucket.next->packer;
  if (packer.num_rows() == 0) return;
  SampleCapacity capacity = NextCapacity(limits_);
  capacity.rows = packer.num_rows();  // not the capacity's: the grid need not exceed the step
  capacity.items = packer.num_items();
  capacity.adjusted = std::min(capacity.adjusted, capacity.items);
  cuda::Sample(
      SampleOf(capacity, bucket.device.sampling, memory_.device_outputs.next, WorkOf(packer)),
      stream_);
}

// Scores are for evaluation: not in graphs, and a block of rows at a time over the logits of the
// tokens to draw, which are drawn by now.
void CudaStepDevice::SampleScores(const StepWork& work) {
  for (size_t block = 0; block < work.num_score_blocks; ++block) {
    const ScoreInputs& device = memory_.device_rare.scores[block];
    CopyToDevice(device.bytes, memory_.host_rare.scores[block].bytes, "a block of scores", stream_);
    model_.Logits(LogitsOf(memory_.buckets[work.bucket], device.rows), *work_[work.bucket].ops);
    cuda::Sample(
        SampleOf(ScoreCapacity(limits_), device.sampling, memory_.device_outputs.scores[block],
                 WorkOf(memory_.scores[block].packer)),
        stream_);
  }
}

// What was asked for, and whether all went well.
void CudaStepDevice::Download(size_t num_score_blocks) {
  const size_t bytes = Index(memory_.device_outputs.ends[num_score_blocks].raw());
  Check(cudaMemcpyAsync(memory_.host_outputs.bytes.data(), memory_.device_outputs.bytes.data(),
                        bytes, cudaMemcpyDeviceToHost, stream_.get()),
        "a step's results");
  status_.Read(stream_);
  done_.Record(stream_);
}

void CudaStepDevice::Wait() {
  orders_.WithRanks([&] { AwaitDone(); });
  deliveries_.Clear();
  if (!status_.report()) return;
  status_.Clear(stream_);
  status_.ThrowIfReported();
}

// ---- What steps cost ----

void CudaStepDevice::TakeTimes(bool on) {
  if (on != timing_.has_value()) timing_ = on ? std::make_optional<Timing>() : std::nullopt;
}

// What the pass's own marks leave of the time between `planned` and `computed` is the plan's kernels.
StepTimes CudaStepDevice::times() const {
  StepTimes times;
  if (!timing_) return times;
  double rest = timing_->computed.SecondsSince(timing_->planned);
  work_[timing_->bucket].marks.ForEach([&](ForwardPart part, double seconds) {
    times[StepPartOf(part)] += seconds;
    rest -= seconds;
  });
  times[StepPart::kPlan] = timing_->planned.SecondsSince(timing_->begin) + std::max(0.0, rest);
  times[StepPart::kSampling] = timing_->sampled.SecondsSince(timing_->computed);
  return times;
}

}  // namespace quire::cuda
