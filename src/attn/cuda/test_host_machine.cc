// The machine of the host: std::threads in place of a CTA's.
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "attn/checks.h"
#include "attn/cuda/export_cells.h"
#include "attn/cuda/export_launch.h"
#include "attn/cuda/test_machine.h"
#include "attn/plan_arrays.h"
#include "attn/plan_build.h"
#include "device/arena.h"

namespace quire::cuda {
namespace {

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

// Keeps the first fault: 0, or 1 + StepFault.
struct FaultNote {
  std::atomic<int>& first;

  void operator()(StepFault fault, int32_t) const {
    int none = 0;
    first.compare_exchange_strong(none, 1 + static_cast<int>(fault));
  }
};

std::vector<std::byte> Unwritten(ByteOffset bytes) {
  return std::vector<std::byte>(Index(bytes.raw()) + 256, kUnwritten);
}

std::span<std::byte> Aligned(std::vector<std::byte>& memory) {
  void* data = memory.data();
  size_t space = memory.size();
  std::align(256, memory.size() - 256, data, space);
  return {static_cast<std::byte*>(data), memory.size() - 256};
}

ByteOffset ArrayBytes(const MachineShape& shape) {
  Carver carver;
  const PlanArrays counted(shape.capacity, shape.work, shape.new_pages, carver);
  return carver.used();
}

// Full of garbage at first, like a device's memory.
class HostMachine final : public TestMachine {
 public:
  explicit HostMachine(const MachineShape& shape)
      : shape_(shape),
        row_pages_(Index(PageRows::Entries(shape.num_rows, shape.row_width)), PageId(0x5A5A5A5A)),
        rows_{.num_rows = shape.num_rows, .width = shape.row_width, .pages = row_pages_},
        memory_(Unwritten(ArrayBytes(shape))),
        carver_(Aligned(memory_), MemorySide::kDevice),
        arrays_(shape.capacity, shape.work, shape.new_pages, carver_),
        packer_(shape.capacity, shape.new_pages, rows_, arrays_.packed),
        seqs_(BuildOf(arrays_, shape.capacity, shape.new_pages, rows_)),
        step_(StepOf(seqs_)),
        plan_(PlanOf(arrays_, shape.capacity, shape.work, rows_, MemorySide::kDevice)) {}

  void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) override {
    packer_.Pack(seqs, uses);
  }
  void Corrupt(FunctionRef<void(const PackedStep&)> change) override { change(step_.step); }

  void Run() override {
    const ScheduleBuild schedule = BuildOf(arrays_.schedule, shape_.capacity, shape_.work);
    BlockShared shared(shape_.threads);
    const auto near = std::make_unique<PlanNear>();
    std::vector<std::thread> threads;
    for (int32_t t = 0; t < shape_.threads; ++t) {
      threads.emplace_back([&, t] {
        ThreadBlock block(shared, t);
        const SequenceTotals totals = BuildSequences(seqs_, near.get(), block, Reporter());
        BuildSchedule(seqs_, schedule, totals, near.get(), block, Reporter());
      });
    }
    for (std::thread& thread : threads) thread.join();
    constexpr int32_t kCtas = 3;
    ForEachThread(kCtas, [&](int32_t cta, int32_t thread) {
      BringPages(seqs_, cta * kThreads + thread, kCtas * kThreads, Reporter());
    });
  }

  PlanCopy Copy() override {
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

  std::string TakeFault() override {
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

 private:
  static constexpr int32_t kThreads = 8;  // of a CTA that has no barriers; any number will do

  FaultNote Reporter() { return {fault_}; }

  static void ForEachThread(int64_t ctas, FunctionRef<void(int32_t, int32_t)> fn) {
    for (int32_t cta = 0; cta < ctas; ++cta) {
      for (int32_t thread = 0; thread < kThreads; ++thread) fn(cta, thread);
    }
  }

  std::byte* NewBlock(size_t bytes) override {
    block_ = Unwritten(ByteOffset(bytes));
    return Aligned(block_).data();
  }
  std::vector<std::byte> CopyBlock() override {
    const std::span<std::byte> bytes = Aligned(block_);
    return {bytes.begin(), bytes.end()};
  }
  void DoFlat(const StepCapacity& capacity, const FlatIndices& out) override {
    const FlatExport to = FlatExportOf(plan_, step_, capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportFlatCell(to, cta, thread, kThreads, Reporter());
    });
  }
  void DoTable(const StepCapacity& capacity, const BlockTable& out) override {
    const TableExport to = TableExportOf(plan_, capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportTableCell(to, cta, thread, kThreads, Reporter());
    });
  }
  void DoDrafts(const StepCapacity& capacity, const DraftRows& out) override {
    const DraftExport to = DraftExportOf(plan_, step_, capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportDraftCell(to, cta, thread, kThreads, Reporter());
    });
  }

  MachineShape shape_;
  std::vector<PageId> row_pages_;
  PageRows rows_;
  std::vector<std::byte> memory_;
  Carver carver_;
  PlanArrays arrays_;
  StepPacker packer_;
  SequencesBuild seqs_;
  StepView step_;
  Plan plan_;
  std::atomic<int> fault_ = 0;  // 0, or 1 + StepFault
  std::vector<std::byte> block_;
};

}  // namespace

std::string MachineProblem() { return {}; }

std::unique_ptr<TestMachine> MakeMachine(const MachineShape& shape) {
  return std::make_unique<HostMachine>(shape);
}

}  // namespace quire::cuda
