// The machine of the device. Plans are made by replays of one graph.
#ifndef QUIRE_ATTN_CUDA_TEST_DEVICE_MACHINE_H_
#define QUIRE_ATTN_CUDA_TEST_DEVICE_MACHINE_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/cuda/plan.h"
#include "attn/cuda/test_machine.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

template <class T>
std::vector<T> ToHost(std::span<const T> from) {
  std::vector<T> to(from.size());
  CopyAndWait(to.data(), from.data(), from.size_bytes(), "cudaMemcpy");
  return to;
}

// Full of kUnwritten, so that what is not written shows.
DeviceBuffer UnwrittenBuffer(const char* name, ByteOffset bytes);

class DeviceMachine final : public TestMachine {
 public:
  explicit DeviceMachine(const MachineShape& shape);

  void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) override;
  void Corrupt(FunctionRef<void(const PackedStep&)> change) override;
  void Run() override;
  PlanCopy Copy() override;
  std::string TakeFault() override;

  const PlanStorage& storage() const { return storage_; }
  const Stream& stream() const { return stream_; }
  StatusWord status() const { return status_.word(); }

 private:
  MachineShape shape_;
  Stream stream_;
  Status status_;
  DeviceBuffer row_memory_;
  PageRows rows_;
  PlanStorageMemory bytes_;
  DeviceBuffer memory_;
  PinnedBuffer pinned_;
  Carver device_carver_, pinned_carver_;
  PlanStorage storage_;
  std::optional<Graph> graph_;
};

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_TEST_DEVICE_MACHINE_H_
