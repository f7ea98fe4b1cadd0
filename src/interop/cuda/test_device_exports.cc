// Exports by the device.
#include <optional>

#include "attn/cuda/test_device_machine.h"
#include "device/cuda/cuda.h"
#include "interop/cuda/export.h"
#include "interop/cuda/test_exports.h"

namespace quire::cuda {
namespace {

class DeviceExports final : public TestExports {
 public:
  explicit DeviceExports(DeviceMachine& machine) : machine_(machine) {}

  std::byte* NewBlock(size_t bytes) override {
    block_.emplace(UnwrittenBuffer("outputs", ByteOffset(bytes)));
    return block_->data();
  }
  std::vector<std::byte> CopyBlock() override {
    machine_.stream().Synchronize();
    return ToHost(std::span<const std::byte>(block_->bytes()));
  }

  void Export(const StepCapacity& capacity, const FlatIndices& out) override {
    ExportFlatIndices(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }
  void Export(const StepCapacity& capacity, const FlatPages& out) override {
    ExportFlatPages(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }
  void Export(const StepCapacity& capacity, const BlockTable& out) override {
    ExportBlockTable(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }
  void Export(const StepCapacity& capacity, const UnifiedPageTable& out) override {
    ExportUnifiedPageTable(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }
  void Export(const StepCapacity& capacity, const DraftRows& out) override {
    ExportDraftRows(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }
  void Export(const StepCapacity& capacity, const DraftTables& out) override {
    ExportDraftTables(machine_.storage(), capacity, out, machine_.stream(), machine_.status());
  }

 private:
  DeviceMachine& machine_;
  std::optional<DeviceBuffer> block_;
};

}  // namespace

std::unique_ptr<TestExports> MakeExports(TestMachine& machine) {
  return std::make_unique<DeviceExports>(dynamic_cast<DeviceMachine&>(machine));
}

}  // namespace quire::cuda
