// What CudaRunner gives to the device for a step, and what it reads back.
#include <algorithm>

#include "kernels/cuda/store.h"
#include "model/cost.h"
#include "runner/cuda/cuda_runner.h"

namespace quire::cuda {
namespace {

// To memory of the device, behind what `stream` was given.
void CopyTo(std::span<std::byte> device, std::span<const std::byte> pinned, const char* what,
            const Stream& stream) {
  QUIRE_CHECK(pinned.size() <= device.size(), "{}: {} bytes for {}", what, pinned.size(),
              device.size());
  if (pinned.empty()) return;
  Check(cudaMemcpyAsync(device.data(), pinned.data(), pinned.size(), cudaMemcpyHostToDevice,
                        stream.get()),
        what);
}

// The first `count` elements.
template <class T>
void CopyFirst(std::span<T> device, std::span<T> pinned, size_t count, const char* what,
               const Stream& stream) {
  CopyTo(std::as_writable_bytes(device), std::as_bytes(pinned.first(count)), what, stream);
}

void Fill(std::span<std::byte> device, int value, const Stream& stream) {
  Check(cudaMemsetAsync(device.data(), value, device.size(), stream.get()), "poison");
}

size_t Index(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

// In every layer: all sources are read before a target is written.
void CudaRunner::CopyPages() {
  const PageSize page_size = plan_.limits.page_size;
  const RareInputs& pinned = memory_.pinned_rare;
  size_t num_rows = 0;
  for (const StepPageCopy& copy : batch_.copies) {
    for (int32_t i = 0; i < copy.count; ++i, ++num_rows) {
      pinned.copy_from[num_rows] = page_size.SlotOf(copy.from, i);
      pinned.copy_to[num_rows] = page_size.SlotOf(copy.to, i);
    }
  }
  if (num_rows == 0) return;
  const RareInputs& device = memory_.device_rare;
  CopyFirst(device.copy_from, pinned.copy_from, num_rows, "slots to copy from", stream_);
  CopyFirst(device.copy_to, pinned.copy_to, num_rows, "slots to copy to", stream_);
  for (const KvStore& store : stores_) {
    StoreMove({.store = store,
               .from = device.copy_from.first(num_rows),
               .to = device.copy_to.first(num_rows),
               .workspace = memory_.copy_rows},
              stream_, status_.word());
  }
}

// NaN in every float.
void CudaRunner::Poison() {
  Fill(memory_.activations, 0xff, stream_);
  for (const TensorView& view : {memory_.logits, memory_.picked, memory_.normed}) {
    const int64_t bytes = view.dim(0) * view.dim(1) * DTypeBytes(view.dtype());
    Fill({view.data(), Index(bytes)}, 0xff, stream_);
  }
}

void CudaRunner::Upload(const Bucket& bucket) {
  CopyTo(bucket.device.bytes, bucket.pinned.bytes, "a step's inputs", stream_);
  // What the items refer to, where they do.
  int64_t num_biases = 0, num_text = 0;
  for (const SampleItem& item :
       bucket.pinned.sampling.items.first(Index(bucket.next->packer.num_items()))) {
    num_biases = std::max<int64_t>(num_biases, item.first_bias + item.num_biases);
    num_text = std::max<int64_t>(num_text, item.first_text + item.num_prompt + item.num_output);
  }
  CopyFirst(memory_.device_rare.biases, memory_.pinned_rare.biases, Index(num_biases),
            "a step's biases", stream_);
  CopyFirst(memory_.device_rare.text, memory_.pinned_rare.text, Index(num_text), "a step's text",
            stream_);
}

// What a graph records: nothing here depends on the step.
void CudaRunner::LaunchBucket(const Bucket& bucket, PartMarks* marks) {
  bucket.plan->Launch(stream_, status_.word());
  if (marks != nullptr) marks->Begin(stream_);
  bucket.ops->MarkIn(marks);
  model_.Forward(ForwardOf(bucket), *bucket.ops);
  model_.Logits(LogitsOf(bucket, bucket.device.logit_rows), *bucket.ops);
  bucket.ops->MarkIn(nullptr);
}

void CudaRunner::LaunchTimed(Bucket& bucket) {
  if (options_.mode == StepMode::kEager) {
    bucket.marks = {};
    LaunchBucket(bucket, &bucket.marks);
    return;
  }
  if (!bucket.timed_graph) {
    bucket.timed_graph.emplace(
        Graph::Capture(stream_, [&] { LaunchBucket(bucket, &bucket.marks); }));
  }
  bucket.timed_graph->Launch(stream_);
}

void CudaRunner::LaunchNext(const Bucket& bucket) {
  const SamplePacker& packer = bucket.next->packer;
  if (packer.num_rows() == 0) return;
  SampleCapacity capacity = NextCapacity(plan_.limits);
  capacity.rows = packer.num_rows();  // not the capacity's: the grid need not exceed the step
  capacity.items = packer.num_items();
  capacity.adjusted = std::min(capacity.adjusted, capacity.items);
  Sample(SampleOf(capacity, bucket.device.sampling, memory_.device_results.next,
                  packer.needs_search() ? SampleWork::kAll : SampleWork::kScan),
         stream_);
}

// Scores are for evaluation: not in graphs, and a block of rows at a time over the logits of the
// tokens to draw, which are drawn by now.
void CudaRunner::LaunchScores(const Bucket& bucket) {
  for (size_t block = 0; block < memory_.results.num_score_blocks(); ++block) {
    const ScoreInputs& device = memory_.device_rare.scores[block];
    const SamplePacker& packer = memory_.scores[block].packer;
    CopyTo(device.bytes, memory_.pinned_rare.scores[block].bytes, "a block of scores", stream_);
    model_.Logits(LogitsOf(bucket, device.rows), *bucket.ops);
    Sample(
        SampleOf(ScoreCapacity(plan_.limits), device.sampling, memory_.device_results.scores[block],
                 packer.needs_search() ? SampleWork::kAll : SampleWork::kScan),
        stream_);
  }
}

// What was asked for, and whether all went well.
void CudaRunner::Download() {
  const size_t blocks = memory_.results.num_score_blocks();
  const size_t bytes = Index(memory_.device_results.ends[blocks].raw());
  Check(cudaMemcpyAsync(memory_.pinned_results.bytes.data(), memory_.device_results.bytes.data(),
                        bytes, cudaMemcpyDeviceToHost, stream_.get()),
        "a step's results");
  status_.Read(stream_);
  done_.Record(stream_);
}

// ---- Results ----

const StepResult& CudaRunner::Collect() {
  ThrowIfLost();
  QUIRE_CHECK(is_running_, "no step was submitted");
  is_running_ = false;
  try {
    done_.Synchronize();
    if (status_.report()) {
      status_.Clear(stream_);
      status_.ThrowIfReported();
    }
  } catch (const DeviceError& error) {
    Remember(error);
    book_.ForgetPages();
    throw;
  } catch (...) {
    book_.ForgetPages();  // what was wrong may have been dropped
    throw;
  }
  if (timing_) AddTimes();
  CountExperts();
  return memory_.results.Fill(memory_.pinned_results.next, memory_.pinned_results.scores);
}

// Layers without experts have none.
void CudaRunner::CountExperts() {
  stats_.fewest_experts = 0;
  for (const int32_t used : memory_.pinned_results.experts_used) {
    if (used == 0) continue;
    const int32_t fewest = stats_.fewest_experts;
    stats_.fewest_experts = fewest == 0 ? used : std::min(fewest, used);
  }
}

// ---- What steps cost ----

ByteOffset CudaRunner::WeightBytesPerStep(int64_t num_tokens) const {
  return quire::WeightBytesPerStep(model_.config(), model_.weights(), num_tokens);
}

void CudaRunner::TakeTimes(bool on) {
  if (on != timing_.has_value()) timing_ = on ? std::make_optional<Timing>() : std::nullopt;
}

// What the pass's own marks leave of the time between `planned` and `computed` is the plan's kernels.
void CudaRunner::AddTimes() {
  times_ = {};
  double rest = timing_->computed.SecondsSince(timing_->planned);
  memory_.buckets[stats_.bucket].marks.ForEach([&](ForwardPart part, double seconds) {
    times_[StepPartOf(part)] += seconds;
    rest -= seconds;
  });
  times_[StepPart::kPlan] =
      timing_->host_seconds + timing_->planned.SecondsSince(timing_->begin) + std::max(0.0, rest);
  times_[StepPart::kSampling] = timing_->sampled.SecondsSince(timing_->computed);
}

}  // namespace quire::cuda
