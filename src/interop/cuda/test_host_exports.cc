// Exports by the host's threads.
#include <cstddef>
#include <cstring>
#include <vector>

#include "attn/cuda/test_host_machine.h"
#include "interop/cuda/export_cells.h"
#include "interop/cuda/export_launch.h"
#include "interop/cuda/test_exports.h"

namespace quire::cuda {
namespace {

class HostExports final : public TestExports {
 public:
  explicit HostExports(HostMachine& machine) : machine_(machine), block_(ByteOffset(0)) {}

  std::byte* NewBlock(size_t bytes) override {
    block_ = UnwrittenBytes(ByteOffset(bytes));
    return block_.bytes().data();
  }
  std::vector<std::byte> CopyBlock() override {
    std::vector<std::byte> copy(block_.bytes().size());
    std::memcpy(copy.data(), block_.bytes().data(), copy.size());
    return copy;
  }

  void Export(const StepCapacity& capacity, const FlatIndices& out) override {
    const FlatExport to = ExportOf(machine_.plan(), machine_.step(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportFlatCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }
  // Its CTAs have a barrier: the same threads are one after the other.
  void Export(const StepCapacity& capacity, const FlatPages& out) override {
    const FlatPagesExport to = ExportOf(machine_.plan(), machine_.step(), capacity, out);
    RunBlock(machine_.shape().threads, [&](ThreadBlock& block) {
      for (int32_t cta = 0; cta < NumCtas(to); ++cta) {
        ExportFlatPagesCell(to, cta, block, machine_.Reporter());
      }
    });
  }
  void Export(const StepCapacity& capacity, const BlockTable& out) override {
    ExportTable(ExportOf(machine_.plan(), machine_.step(), capacity, out));
  }
  void Export(const StepCapacity& capacity, const UnifiedPageTable& out) override {
    ExportTable(ExportOf(machine_.plan(), machine_.step(), capacity, out));
  }
  void Export(const StepCapacity& capacity, const DraftRows& out) override {
    const DraftExport to = ExportOf(machine_.plan(), machine_.step(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportDraftCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }
  void Export(const StepCapacity& capacity, const DraftTables& out) override {
    const DraftTablesExport to = ExportOf(machine_.plan(), machine_.step(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportDraftTablesCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }

 private:
  void ExportTable(const TableExport& to) {
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportTableCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }

  HostMachine& machine_;
  UnwrittenBytes block_;
};

}  // namespace

std::unique_ptr<TestExports> MakeExports(TestMachine& machine) {
  return std::make_unique<HostExports>(dynamic_cast<HostMachine&>(machine));
}

}  // namespace quire::cuda
