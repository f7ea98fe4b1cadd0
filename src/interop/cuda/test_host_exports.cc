// Exports by the host's threads.
#include "attn/cuda/test_host_machine.h"
#include "interop/cuda/export_cells.h"
#include "interop/cuda/export_launch.h"
#include "interop/cuda/test_exports.h"

namespace quire::cuda {
namespace {

class HostExports final : public TestExports {
 public:
  explicit HostExports(HostMachine& machine) : machine_(machine), block_(ByteOffset(0)) {}

 private:
  std::byte* NewBlock(size_t bytes) override {
    block_ = UnwrittenBytes(ByteOffset(bytes));
    return block_.bytes().data();
  }
  std::vector<std::byte> CopyBlock() override {
    return {block_.bytes().begin(), block_.bytes().end()};
  }
  void DoFlat(const StepCapacity& capacity, const FlatIndices& out) override {
    const FlatExport to = FlatExportOf(machine_.plan(), machine_.step(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportFlatCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }
  void DoTable(const StepCapacity& capacity, const BlockTable& out) override {
    const TableExport to = TableExportOf(machine_.plan(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportTableCell(to, cta, thread, kLoneThreads, machine_.Reporter());
    });
  }
  void DoDrafts(const StepCapacity& capacity, const DraftRows& out) override {
    const DraftExport to = DraftExportOf(machine_.plan(), machine_.step(), capacity, out);
    ForEachThread(NumCtas(to), [&](int32_t cta, int32_t thread) {
      ExportDraftCell(to, cta, thread, kLoneThreads, machine_.Reporter());
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
