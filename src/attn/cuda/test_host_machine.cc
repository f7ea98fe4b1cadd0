#include "attn/cuda/test_host_machine.h"

#include <memory>
#include <thread>
#include <type_traits>

namespace quire::cuda {
namespace {

ByteOffset ArrayBytes(const MachineShape& shape) {
  Carver carver;
  const PlanArrays counted(shape.capacity, shape.work, shape.new_pages, carver);
  return carver.used();
}

}  // namespace

void RunBlock(int threads, FunctionRef<void(ThreadBlock&)> fn) {
  BlockShared shared(threads);
  std::vector<std::thread> running;
  for (int32_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      ThreadBlock block(shared, t);
      fn(block);
    });
  }
  for (std::thread& thread : running) thread.join();
}

UnwrittenBytes::UnwrittenBytes(ByteOffset bytes) : memory_(Index(bytes.raw()) + 256, kUnwritten) {
  void* data = memory_.data();
  size_t space = memory_.size();
  std::align(256, Index(bytes.raw()), data, space);
  bytes_ = {static_cast<std::byte*>(data), Index(bytes.raw())};
}

void ForEachThread(int64_t ctas, FunctionRef<void(int32_t, int32_t)> fn) {
  for (int32_t cta = 0; cta < ctas; ++cta) {
    for (int32_t thread = 0; thread < kLoneThreads; ++thread) fn(cta, thread);
  }
}

HostMachine::HostMachine(const MachineShape& shape)
    : shape_(shape),
      row_pages_(Index(PageRows::Entries(shape.num_rows, shape.row_width)), PageId(0x5A5A5A5A)),
      rows_{.num_rows = shape.num_rows, .width = shape.row_width, .pages = row_pages_},
      memory_(ArrayBytes(shape)),
      carver_(memory_.bytes(), MemorySide::kDevice),
      arrays_(shape.capacity, shape.work, shape.new_pages, carver_),
      packer_(shape.capacity, shape.new_pages, rows_, arrays_.packed),
      seqs_(BuildOf(arrays_, shape.capacity, shape.new_pages, rows_)),
      step_(StepOf(seqs_)),
      plan_(PlanOf(arrays_, shape.capacity, shape.work, rows_, MemorySide::kDevice)) {}

void HostMachine::Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  packer_.Pack(seqs, uses);
}

void HostMachine::Corrupt(FunctionRef<void(const PackedStep&)> change) { change(step_.step); }

void HostMachine::Run() {
  const ScheduleBuild schedule = BuildOf(arrays_.schedule, shape_.capacity, shape_.work);
  const auto near = std::make_unique<PlanNear>();
  RunBlock(shape_.threads, [&](ThreadBlock& block) {
    const SequenceTotals totals = BuildSequences(seqs_, near.get(), block, Reporter());
    BuildSchedule(seqs_, schedule, totals, near.get(), block, Reporter());
  });
  constexpr int32_t kCtas = 3;
  ForEachThread(kCtas, [&](int32_t cta, int32_t thread) {
    BringPages(seqs_, cta * kLoneThreads + thread, kCtas * kLoneThreads, Reporter());
  });
}

PlanCopy HostMachine::Copy() {
  const auto copy = [](auto from) {
    return std::vector<std::remove_const_t<typename decltype(from)::element_type>>(from.begin(),
                                                                                   from.end());
  };
  return {.seq_counts = *plan_.seq_counts,
          .counts = *plan_.counts,
          .page_rows = row_pages_,
          .row_of = copy(plan_.row_of),
          .kv_len = copy(plan_.kv_len),
          .committed = copy(plan_.committed),
          .q_offset = copy(plan_.q_offset),
          .tree_masks = copy(plan_.tree_masks),
          .tiles = copy(plan_.tiles),
          .workers = copy(plan_.workers),
          .merges = copy(plan_.merges)};
}

std::string HostMachine::TakeFault() {
  switch (fault_.exchange(0)) {
    case 1 + static_cast<int>(StepFault::kCapacity):
      return "capacity";
    case 1 + static_cast<int>(StepFault::kPage):
      return "page";
    case 1 + static_cast<int>(StepFault::kTree):
      return "tree";
    default:
      return "";
  }
}

std::string MachineProblem() { return {}; }

std::unique_ptr<TestMachine> MakeMachine(const MachineShape& shape) {
  return std::make_unique<HostMachine>(shape);
}

}  // namespace quire::cuda
