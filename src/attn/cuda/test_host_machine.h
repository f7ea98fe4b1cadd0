// The machine of the host: std::threads in place of a CTA's.
#ifndef QUIRE_ATTN_CUDA_TEST_HOST_MACHINE_H_
#define QUIRE_ATTN_CUDA_TEST_HOST_MACHINE_H_

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/test_machine.h"
#include "attn/plan.h"
#include "attn/plan_arrays.h"
#include "attn/plan_build.h"
#include "base/executor.h"
#include "device/arena.h"

namespace quire::cuda {

// What the threads of a block share.
struct BlockShared {
  explicit BlockShared(int threads) : barrier(threads), values(Index(threads)) {}

  std::barrier<> barrier;
  std::vector<std::vector<int64_t>> values;
};

class ThreadBlock {
 public:
  ThreadBlock(BlockShared& shared, int32_t thread) : shared_(shared), thread_(thread) {}

  int32_t thread() const { return thread_; }
  int32_t threads() const { return static_cast<int32_t>(shared_.values.size()); }
  void Sync() { shared_.barrier.arrive_and_wait(); }
  bool Any(bool value) {
    const int64_t values[1] = {value ? 1 : 0};
    int64_t before[1], total[1];
    Scan(values, before, total);
    return total[0] > 0;
  }
  template <size_t N>
  void Scan(const int64_t (&value)[N], int64_t (&before)[N], int64_t (&total)[N]) {
    shared_.values[Index(thread_)].assign(value, value + N);
    Sync();
    for (size_t i = 0; i < N; ++i) {
      before[i] = total[i] = 0;
      for (size_t t = 0; t < shared_.values.size(); ++t) {
        if (t < Index(thread_)) before[i] += shared_.values[t][i];
        total[i] += shared_.values[t][i];
      }
    }
    Sync();
  }

 private:
  BlockShared& shared_;
  int32_t thread_;
};

// Runs fn(block) on as many threads as the block is to have.
void RunBlock(int threads, FunctionRef<void(ThreadBlock&)> fn);

// Keeps the first fault: 0, or 1 + StepFault.
struct FaultNote {
  std::atomic<int>& first;

  void operator()(StepFault fault, int32_t) const {
    int none = 0;
    first.compare_exchange_strong(none, 1 + static_cast<int>(fault));
  }
};

// Bytes that begin at a multiple of 256, full of kUnwritten like a device's memory.
class UnwrittenBytes {
 public:
  explicit UnwrittenBytes(ByteOffset bytes);
  UnwrittenBytes(UnwrittenBytes&&) = default;
  UnwrittenBytes& operator=(UnwrittenBytes&&) = default;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> memory_;
  std::span<std::byte> bytes_;
};

// A CTA without barriers: each of its threads in turn, of every CTA.
inline constexpr int32_t kLoneThreads = 8;  // any number will do
void ForEachThread(int64_t ctas, FunctionRef<void(int32_t cta, int32_t thread)> fn);

class HostMachine final : public TestMachine {
 public:
  explicit HostMachine(const MachineShape& shape);

  void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) override;
  void Corrupt(FunctionRef<void(const PackedStep&)> change) override;
  void Run() override;
  PlanCopy Copy() override;
  std::string TakeFault() override;

  const MachineShape& shape() const { return shape_; }
  const Plan& plan() const { return plan_; }
  const StepView& step() const { return step_; }
  FaultNote Reporter() { return {fault_}; }

 private:
  MachineShape shape_;
  std::vector<PageId> row_pages_;
  PageRows rows_;
  UnwrittenBytes memory_;
  Carver carver_;
  PlanArrays arrays_;
  StepPacker packer_;
  SequencesBuild seqs_;
  StepView step_;
  Plan plan_;
  std::atomic<int> fault_ = 0;  // 0, or 1 + StepFault
};

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_TEST_HOST_MACHINE_H_
