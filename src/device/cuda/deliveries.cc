#include "device/cuda/deliveries.h"

#include <cstdint>

#include "base/error.h"
#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

// What a kernel brings of the host's memory, in bytes; more is copied.
constexpr size_t kLargestDelivery = 32 << 10;

void CheckFits(std::span<const std::byte> device, std::span<const std::byte> pinned,
               const char* what) {
  QUIRE_CHECK(pinned.size() <= device.size(), "{}: {} bytes for {}", what, pinned.size(),
              device.size());
}

}  // namespace

void CopyToDevice(std::span<std::byte> device, std::span<const std::byte> pinned, const char* what,
                  const Stream& stream) {
  CheckFits(device, pinned, what);
  if (pinned.empty()) return;
  Check(cudaMemcpyAsync(device.data(), pinned.data(), pinned.size(), cudaMemcpyHostToDevice,
                        stream.get()),
        what);
}

Deliveries::Deliveries(const Stream& stream, std::span<std::byte> room)
    : stream_(stream), has_room_(!room.empty()), staging_(room) {
  waiting_.reserve(kMaxColumnCopies);
}

void Deliveries::Bring(std::span<std::byte> device, std::span<const std::byte> pinned,
                       const char* what) {
  if (!has_room_) return CopyToDevice(device, pinned, what, stream_);
  CheckFits(device, pinned, what);
  if (pinned.empty()) return;
  std::span<const std::byte> staged = staging_.Put(pinned);
  if (staged.empty()) {
    Deliver();
    stream_.Synchronize();
    Clear();
    staged = staging_.Put(pinned);
  }
  if (staged.empty()) {  // it is larger than the room
    CopyToDevice(device, pinned, what, stream_);
    stream_.Synchronize();
  } else if (staged.size() > kLargestDelivery) {
    CopyToDevice(device, staged, what, stream_);
  } else {
    if (waiting_.size() == kMaxColumnCopies) Deliver();
    waiting_.push_back(
        {.from = staged.data(), .to = device.data(), .width = static_cast<int64_t>(staged.size())});
  }
}

// By a kernel that reads the host's memory: a copy of each piece would take longer.
void Deliveries::Deliver() {
  CopyColumns(waiting_, 1, WrittenBy::kHost, stream_);
  waiting_.clear();
}

void Deliveries::Clear() {
  staging_.Clear();
  waiting_.clear();
}

}  // namespace quire::cuda
