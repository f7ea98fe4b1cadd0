// A step's drafts: passes of the model's own draft layer or of a head, and trees that grow on the device.
#include <cstddef>
#include <span>

#include "runner/cuda/cuda_step_device.h"

namespace quire::cuda {
namespace {

// A piece of memory up to the end of one of its parts.
template <class T>
std::span<std::byte> UpTo(std::span<std::byte> bytes, std::span<T> part) {
  return bytes.first(
      static_cast<size_t>(reinterpret_cast<std::byte*>(part.data() + part.size()) - bytes.data()));
}

}  // namespace

// The same rows through what drafts. A head sees every key.
ForwardArgs CudaStepDevice::DraftOf(size_t number) const {
  const std::span<const KvStore> stores = std::span(stores_).subspan(NumTrunkStores(config_));
  if (head_) {
    const BucketInputs& inputs = memory_.buckets[number].device;
    return {.tokens = inputs.tokens,
            .positions = inputs.positions,
            .slots = inputs.slots,
            .plan = DraftPlan(number).plan(),
            .stores = stores,
            .buffers = memory_.heads[number].forward};
  }
  ForwardArgs args = ForwardOf(number);
  args.stores = stores;
  args.experts_used = {};
  args.states = {};
  return args;
}

PlanStorage& CudaStepDevice::DraftPlan(size_t bucket) const {
  return *parts_.buckets[bucket + (head_ ? memory_.buckets.size() : 0)].plan;
}

CudaOps& CudaStepDevice::DraftOps(size_t bucket) const {
  const BucketWork& work = work_[bucket];
  return head_ ? *work.head_ops : *work.ops;
}

void CudaStepDevice::Draft(const StepWork& work, const DraftWork& draft) {
  orders_.WithRanks([&] {
    orders_.TellDraft(work, draft);
    DraftNow(work);
  });
  SampleTops(draft.num_wanted);
  DownloadTops(draft.num_wanted);
  Wait();
}

void CudaStepDevice::DraftNow(const StepWork& work) {
  BringDraft(work);
  deliveries_.Deliver();
  RunDraftNow(work.bucket);
}

// The inputs of the bucket's rows alone: nothing is drawn of them.
void CudaStepDevice::BringDraft(const StepWork& work) {
  const Bucket& bucket = memory_.buckets[work.bucket];
  PlanStorage& plan = DraftPlan(work.bucket);
  plan.Pack(work.seqs, work.uses);
  if (options_.checks == StepChecks::kPoison) Poison();
  deliveries_.Bring(bucket.device.bytes, UpTo(bucket.host.bytes, bucket.host.live_tokens),
                    "a draft's rows");
  const DraftInputs& pinned = memory_.host_draft;
  deliveries_.Bring(memory_.device_draft.bytes,
                    UpTo(pinned.bytes, pinned.state_of.first(work.num_tokens)), "a draft's inputs");
  BringPlan(plan);
}

void CudaStepDevice::RunDraftNow(size_t bucket) {
  if (options_.mode == StepMode::kGraph) {
    Launch(work_[bucket].draft_graph);
  } else {
    LaunchDraft(bucket);
  }
}

// What a graph records.
void CudaStepDevice::LaunchDraft(size_t number) {
  PlanStep(number, DraftPlan(number));
  RunDraft(Drafting(), DraftOf(number), memory_,
           static_cast<size_t>(memory_.buckets[number].draft_rows), DraftOps(number),
           [](int64_t first, int64_t) {
             QUIRE_CHECK(first == 0, "a block of logits has room for a whole pass");
           });
  stream_.set_overlaps(true);
}

void CudaStepDevice::SampleTops(size_t num_wanted) {
  if (num_wanted == 0) return;
  const TensorView logits = DraftedLogits(Drafting(), memory_, static_cast<int64_t>(num_wanted));
  SampleCapacity capacity = DraftCapacity(limits_, static_cast<int32_t>(num_wanted));
  capacity.vocab_size = logits.dim(1);
  SampleArgs args = SampleOf(capacity, memory_.device_draft.sampling, memory_.device_tops,
                             WorkOf(*memory_.draft_tops));
  args.logits = logits;
  cuda::Sample(args, stream_);
}

void CudaStepDevice::DownloadTops(size_t num_wanted) {
  if (num_wanted > 0) {
    const std::span<TokenLogprob> top = memory_.host_tops.top.first(num_wanted * kMaxTopLogprobs);
    Check(cudaMemcpyAsync(top.data(), memory_.device_tops.top.data(), top.size_bytes(),
                          cudaMemcpyDeviceToHost, stream_.get()),
          "a draft's tokens");
  }
  status_.Read(stream_);
  done_.Record(stream_);
}

void CudaStepDevice::FollowDraft(const StepWork& work, const DraftWork&) { DraftNow(work); }

void CudaStepDevice::CopyState(int32_t from, int32_t to) {
  orders_.WithRanks([&] {
    orders_.TellCopyState(from, to);
    const TensorView& states = memory_.states;
    const int64_t bytes = states.dim(1) * DTypeBytes(states.dtype());
    Check(cudaMemcpyAsync(states.data() + to * bytes, states.data() + from * bytes,
                          static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.get()),
          "a state that is kept");
  });
}

// ---- Trees that grow on the device ----

GrowRowsArgs CudaStepDevice::RowsOf(size_t bucket, std::span<const GrowingRows> rows,
                                    const GrowthWork& growth) const {
  return {.growths = parts_.growths,
          .rows = rows,
          .branches = growth.branches,
          .forgets_parents = growth.forgets_parents,
          .tokens = memory_.buckets[bucket].device.tokens,
          .state_of = memory_.device_draft.state_of,
          .packed = DraftPlan(bucket).step_on_device()};
}

// Nothing of it is waited for: what fails is found by the next Wait.
void CudaStepDevice::Grow(const StepWork& work, const DraftWork& draft, const GrowthWork& growth) {
  const bool is_chain = growth.branches == 1;
  const SampleResults& results = memory_.device_tops;
  const RowTops tops{.tokens = is_chain ? results.chosen.data() : results.top.data(),
                     .stride = is_chain ? 1 : kMaxTopLogprobs,
                     .token_ids = parts_.token_ids};
  const auto rows = deliveries_.BringList(parts_.growing, growth.rows, "rows that grow");
  const auto kept = deliveries_.BringList(parts_.kept, growth.kept, "drafts to keep");
  if (work.num_tokens > 0) BringDraft(work);
  deliveries_.Deliver();
  if (work.num_tokens > 0) {
    GrowRows(RowsOf(work.bucket, rows, growth), stream_);
    RunDraftNow(work.bucket);
    SampleTops(draft.num_wanted);
    TakeLevel({.growths = parts_.growths, .rows = rows, .branches = growth.branches, .tops = tops},
              stream_);
  }
  KeepDrafts({.growths = parts_.growths, .kept = kept, .tops = tops, .states = memory_.states},
             stream_);
}

void CudaStepDevice::PlaceTrees(const StepWork& work) {
  const BucketInputs& inputs = memory_.buckets[work.bucket].device;
  const auto trees = deliveries_.BringList(parts_.trees, work.trees, "trees of a step");
  deliveries_.Deliver();
  cuda::PlaceTrees({.growths = parts_.growths,
                    .trees = trees,
                    .tokens = inputs.tokens,
                    .positions = inputs.positions,
                    .packed = parts_.buckets[work.bucket].plan->step_on_device(),
                    .sampling = inputs.sampling,
                    .nodes = memory_.device_outputs.trees},
                   stream_);
}

// Of trees without branches, and of a state that nobody has written yet.
void CudaStepDevice::GrowNothing() {
  const GrowingRows rows;
  const KeptDraft kept;
  const GrownTree tree{.branches = 0};
  const GrowthWork nothing{.rows = {&rows, 1}, .kept = {&kept, 1}, .branches = 0};
  const auto on_device = deliveries_.BringList(parts_.growing, nothing.rows, "rows that grow");
  deliveries_.Deliver();
  GrowRows(RowsOf(0, on_device, nothing), stream_);
  TakeLevel({.growths = parts_.growths, .rows = on_device, .branches = 0}, stream_);
  Grow({}, {}, nothing);
  PlaceTrees({.trees = {&tree, 1}});
}

}  // namespace quire::cuda
