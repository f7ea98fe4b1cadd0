// Ranks that compute on devices: collective calls over device memory, which are given to a stream.
//
// Two kinds. Local ranks are threads of this process that share one GPU, each with a stream of its own: what
// is there for tests, since a GPU gains nothing by it. NCCL's (device/cuda/nccl_ranks.h) have a GPU each.
//
// Local ranks wait for each other by events between their streams, never by a kernel that spins: several
// kernels that wait for one another on one GPU can keep each other from being placed, by their room or by a
// queue of the driver that two streams share. So the hosts meet in every call, where a rank that fails or is
// late is noticed as on the CPU, and a recorded step is one graph of all ranks, whose edges are those events.
#ifndef QUIRE_DEVICE_CUDA_DEVICE_RANKS_H_
#define QUIRE_DEVICE_CUDA_DEVICE_RANKS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "device/collective.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// One rank's end of the group, for one thread at a time. All ranks make all calls in one order, with the same
// types and shapes. Throws as Collective does.
class DeviceRank {
 public:
  virtual ~DeviceRank() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  // Ranks that share this one's GPU, this one included.
  virtual int32_t ranks_of_device() const = 0;

  // Memory for gathers on their way: as much as the largest of them. Not all kinds need it.
  virtual void TakeStaging(std::span<std::byte>) {}
  // As Collective::AllGather, behind what `stream` was given.
  virtual void AllGather(TensorView whole, std::span<const Share> shares, const Stream& stream) = 0;
  // Every word becomes what one rank has there; the others have 0.
  virtual void AllReduceOr(std::span<uint32_t> words, const Stream& stream) = 0;

  // Graph::Capture and Graph::Launch, of work with calls of this rank in it, by all ranks at once. What
  // Record returns is for Launch, and may be nothing: where one graph holds the work of all.
  virtual std::optional<Graph> Record(const Stream& stream, FunctionRef<void()> work);
  virtual void Launch(const std::optional<Graph>& graph, const Stream& stream);

  // Returns when `done` is reached. Throws if a rank has failed, or does not come within the group's patience.
  virtual void Wait(const Event& done) { done.Synchronize(); }
  // After a failure: ends what may still wait for other ranks.
  virtual void Abort() noexcept {}
};

// The end of a rank that shares a GPU with the others of its group, by way of `host`, which is the same rank's.
inline constexpr int32_t kMaxLocalDeviceRanks = 16;
class LocalDeviceRank final : public DeviceRank {
 public:
  // What the ranks of a group share; one for all.
  struct Group {
    std::mutex recording;
  };
  LocalDeviceRank(std::shared_ptr<Collective> host, std::shared_ptr<Group> group);

  int32_t rank() const override { return host_->rank(); }
  int32_t size() const override { return host_->size(); }
  int32_t ranks_of_device() const override { return size(); }
  void AllGather(TensorView whole, std::span<const Share> shares, const Stream& stream) override;
  void AllReduceOr(std::span<uint32_t> words, const Stream& stream) override;
  std::optional<Graph> Record(const Stream& stream, FunctionRef<void()> work) override;
  void Launch(const std::optional<Graph>& graph, const Stream& stream) override;

 private:
  // What a rank shows the others when they meet.
  struct Shown {
    std::byte* memory = nullptr;
    const Event* wrote = nullptr;
    const Event* read = nullptr;
  };
  // Returns when all ranks are here and have shown theirs.
  void Meet(std::byte* memory);
  // `stream` waits for what the others have recorded.
  void AwaitOthers(const Event* Shown::*event, const Stream& stream) const;
  // copy(), which reads what others have shown, between two meetings.
  void Exchange(std::byte* memory, const Stream& stream, FunctionRef<void()> copy);

  const std::shared_ptr<Collective> host_;
  const std::shared_ptr<Group> group_;
  // One rank at a time adds to the graph that all record; held while this one does.
  std::unique_lock<std::mutex> turn_;
  Event wrote_, read_;
  std::vector<Shown> shown_;   // of every rank
  std::vector<Share> shares_;  // of shown_, in words
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_DEVICE_RANKS_H_
