// A rank among others: how it follows the orders of the first one, and how a step that failed ends for all of them.
#include <algorithm>
#include <exception>
#include <span>

#include "runner/cuda/cuda_step_device.h"

namespace quire::cuda {
namespace {

bool HasFailed(const Collective& ranks) {
  try {
    ranks.ThrowIfFailed();
    return false;
  } catch (const DeviceError&) {
    return true;
  }
}

}  // namespace

// ---- A rank that follows ----

void CudaStepDevice::Follow() noexcept {
  orders_.Follow(*this);
  Abandon(nullptr);
}

// Pinned memory is on its way until then.
void CudaStepDevice::AwaitLastOrder() {
  status_.Read(stream_);
  AwaitStream();
  status_.ThrowIfReported();
}

void CudaStepDevice::FollowStep(StepOrder order, const StepWork& work) {
  if (order == StepOrder::kPrepare) return PrepareNow(work);
  if (order == StepOrder::kPages) return BringPagesNow(work.bucket, work.seqs, work.uses);
  BringNow(work);
  RunNow(work.bucket, order == StepOrder::kRunTimed);
}

void CudaStepDevice::FollowLogits(size_t bucket, size_t list, std::span<const int32_t> rows) {
  const ScoreInputs& pinned = memory_.host_rare.scores[list];
  std::ranges::fill(pinned.rows, 0);
  std::ranges::copy(rows, pinned.rows.begin());
  const ScoreInputs& device = memory_.device_rare.scores[list];
  CopyToDevice(device.bytes, pinned.bytes, "rows of scores", stream_);
  model_.Logits(LogitsOf(memory_.buckets[bucket], device.rows), *work_[bucket].ops);
}

// ---- A device that is lost ----

void CudaStepDevice::Enter() {
  if (rank_.host != nullptr) rank_.host->ThrowIfFailed();
  if (lost_) throw DeviceError(*lost_);
  UseDevice(device_);
}

void CudaStepDevice::MeetRanks(std::span<uint32_t> words) {
  if (config_.shard.tokens != RankTokens::kOwn) return;
  orders_.WithRanks([&] { rank_.host->AllReduceOr(words); });
}

// Waits for all that was launched, well or not. A pass that failed may have left its branch unjoined.
void CudaStepDevice::Abandon(const std::exception_ptr& why) noexcept {
  try {
    orders_.FailFor(why);
    if (why) std::rethrow_exception(why);
    orders_.TellEnd();
  } catch (const DeviceError& error) {
    if (error.is_sticky()) lost_ = error;
  } catch (...) {  // ours: the device is well
  }
  if (rank_.device != nullptr && HasFailed(*rank_.host)) rank_.device->Abort();
  if (lost_ && rank_.device == nullptr) return;
  cudaStreamSynchronize(stream_.get());
  cudaStreamSynchronize(branch_.stream().get());
  deliveries_.Clear();
  cudaGetLastError();  // of a stream that another rank's failure left in a recording
}

}  // namespace quire::cuda
