#include "device/cuda/device_ranks.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/gather_columns.h"

namespace quire::cuda {

std::optional<Graph> DeviceRank::Record(const Stream& stream, FunctionRef<void()> work) {
  std::optional<Graph> graph = Graph::Capture(stream, work);
  graph->Upload(stream);
  return graph;
}

void DeviceRank::Launch(const std::optional<Graph>& graph, const Stream& stream) {
  graph->Launch(stream);
}

LocalDeviceRank::LocalDeviceRank(std::shared_ptr<Collective> host, std::shared_ptr<Group> group)
    : host_(std::move(host)),
      group_(std::move(group)),
      turn_(group_->recording, std::defer_lock),
      shown_(static_cast<size_t>(size())) {
  Require(size() <= kMaxLocalDeviceRanks, "ranks of one GPU: expected at most {}, got {}",
          kMaxLocalDeviceRanks, size());
  static_assert(kMaxLocalDeviceRanks <= kMaxColumnCopies);
  constexpr int64_t kWords = sizeof(Shown) / sizeof(float);
  for (int32_t rank = 0; rank < size(); ++rank) {
    shares_.push_back({.first = rank * kWords, .count = kWords});
  }
}

// The hosts' gather of a few words is the meeting.
void LocalDeviceRank::Meet(std::byte* memory) {
  shown_[static_cast<size_t>(rank())] = {.memory = memory, .wrote = &wrote_, .read = &read_};
  const bool has_turn = turn_.owns_lock();
  if (has_turn) turn_.unlock();
  const Share last = shares_.back();
  host_->AllGather(TensorView(reinterpret_cast<float*>(shown_.data()), {1, last.end()}), shares_);
  if (has_turn) turn_.lock();
}

void LocalDeviceRank::AwaitOthers(const Event* Shown::*event, const Stream& stream) const {
  for (int32_t other = 0; other < size(); ++other) {
    if (other != rank()) (shown_[static_cast<size_t>(other)].*event)->MakeWait(stream);
  }
}

// No event is recorded again before all have made their streams wait for it: there is a meeting in between.
void LocalDeviceRank::Exchange(std::byte* memory, const Stream& stream, FunctionRef<void()> copy) {
  if (size() == 1) return;
  wrote_.Record(stream);
  Meet(memory);
  AwaitOthers(&Shown::wrote, stream);
  copy();
  read_.Record(stream);
  Meet(memory);
  AwaitOthers(&Shown::read, stream);  // what they have read may be written again
}

void LocalDeviceRank::AllGather(TensorView whole, std::span<const Share> shares,
                                const Stream& stream) {
  QUIRE_CHECK(std::ssize(shares) == size(), "{} shares for {} ranks", shares.size(), size());
  Exchange(whole.data(), stream, [&] {
    const int64_t bytes = DTypeBytes(whole.dtype());
    const int64_t stride = whole.stride(0) * bytes;
    ColumnCopy copies[kMaxLocalDeviceRanks];
    size_t count = 0;
    for (int32_t other = 0; other < size(); ++other) {
      const Share& share = shares[static_cast<size_t>(other)];
      if (other == rank() || share.count == 0) continue;
      const int64_t first = share.first * bytes;
      copies[count++] = {.from = shown_[static_cast<size_t>(other)].memory + first,
                         .from_stride = stride,
                         .to = whole.data() + first,
                         .to_stride = stride,
                         .width = share.count * bytes};
    }
    CopyColumns(std::span(copies).first(count), whole.dim(0), WrittenBy::kKernels, stream);
  });
}

void LocalDeviceRank::AllReduceOr(std::span<uint32_t> words, const Stream& stream) {
  Exchange(reinterpret_cast<std::byte*>(words.data()), stream, [&] {
    std::byte* others[kMaxLocalDeviceRanks];
    size_t count = 0;
    for (int32_t other = 0; other < size(); ++other) {
      if (other != rank()) others[count++] = shown_[static_cast<size_t>(other)].memory;
    }
    OrWords(words, std::span(others).first(count), stream);
  });
}

// Rank 0's stream records, and the others' join it.
std::optional<Graph> LocalDeviceRank::Record(const Stream& stream, FunctionRef<void()> work) {
  if (size() == 1) return DeviceRank::Record(stream, work);
  std::optional<Graph> graph;
  const auto record = [&] {
    turn_.lock();
    wrote_.Record(stream);
    Meet(nullptr);
    if (rank() != 0) shown_[0].wrote->MakeWait(stream);
    Meet(nullptr);  // the others' streams record from here on, and wrote_ may be another point
    work();
    wrote_.Record(stream);
    Meet(nullptr);
    if (rank() == 0) AwaitOthers(&Shown::wrote, stream);
    turn_.unlock();
  };
  try {
    if (rank() == 0) {
      graph = Graph::Capture(stream, record);
      graph->Upload(stream);
    } else {
      record();
    }
  } catch (...) {
    if (turn_.owns_lock()) turn_.unlock();
    throw;
  }
  Meet(nullptr);  // no stream is used again before the recording has ended
  return graph;
}

void LocalDeviceRank::Launch(const std::optional<Graph>& graph, const Stream& stream) {
  if (size() == 1) return DeviceRank::Launch(graph, stream);
  if (rank() != 0) wrote_.Record(stream);
  Meet(nullptr);
  if (rank() == 0) {
    AwaitOthers(&Shown::wrote, stream);
    graph->Launch(stream);
    read_.Record(stream);
  }
  Meet(nullptr);
  if (rank() != 0) shown_[0].read->MakeWait(stream);
}

}  // namespace quire::cuda
