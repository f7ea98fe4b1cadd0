// Plans of attn/cuda where a test wants them: on the device, or by the same code on the host's threads.
// Two binaries run the same tests (step_test.cc); each links one machine.
#ifndef QUIRE_ATTN_CUDA_TEST_MACHINE_H_
#define QUIRE_ATTN_CUDA_TEST_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/capacity.h"
#include "attn/plan_elements.h"
#include "attn/step_pack.h"
#include "base/executor.h"

namespace quire::cuda {

struct MachineShape {
  StepCapacity capacity;
  WorkShape work;
  PageCount new_pages;
  int32_t num_rows = 1;  // of pages
  PageCount row_width;
  int threads = 1;  // of the host's machine
};

// What a plan holds, copied to the host: whole arrays of the capacity.
struct PlanCopy {
  SequenceCounts seq_counts;
  ScheduleCounts counts;
  std::vector<PageId> page_rows;  // [num_rows, row_width] of the shape
  std::vector<int32_t> row_of;
  std::vector<TokenCount> kv_len, committed, q_offset;
  std::vector<uint64_t> tree_masks;
  std::vector<QueryTile> tiles;
  std::vector<WorkerStart> workers;
  std::vector<Merge> merges;
};

// What a machine's memory is full of before anything is written.
inline constexpr std::byte kUnwritten{0xA5};

class TestMachine {
 public:
  virtual ~TestMachine() = default;

  virtual void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) = 0;
  // Changes the packed step behind the host's back.
  virtual void Corrupt(FunctionRef<void(const PackedStep&)> change) = 0;
  // Makes the plan of the packed step. The device's machine records this once and replays it.
  virtual void Run() = 0;
  virtual PlanCopy Copy() = 0;
  // "", "capacity", "page" or "tree": the first fault since the last call.
  virtual std::string TakeFault() = 0;
};

// Why there is no machine here; "" if there is one.
std::string MachineProblem();
std::unique_ptr<TestMachine> MakeMachine(const MachineShape& shape);

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_TEST_MACHINE_H_
