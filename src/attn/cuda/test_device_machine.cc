// The machine of the device. Plans are made by replays of one graph.
#include <memory>
#include <optional>

#include "attn/checks.h"
#include "attn/cuda/export.h"
#include "attn/cuda/plan.h"
#include "attn/cuda/test_machine.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {
namespace {

template <class T>
std::vector<T> ToHost(std::span<const T> from) {
  std::vector<T> to(from.size());
  CopyAndWait(to.data(), from.data(), from.size_bytes(), "cudaMemcpy");
  return to;
}

// Garbage, so that what is not written shows.
DeviceBuffer Filled(const char* name, ByteOffset bytes) {
  DeviceBuffer buffer(name, bytes);
  FillAndWait(buffer.bytes(), static_cast<int>(kUnwritten), "cudaMemset");
  Check(cudaDeviceSynchronize(), "cudaMemset");
  return buffer;
}

class DeviceMachine final : public TestMachine {
 public:
  explicit DeviceMachine(const MachineShape& shape)
      : shape_(shape),
        row_memory_(Filled("page rows", ByteOffset(sizeof(PageId)) *
                                            PageRows::Entries(shape.num_rows, shape.row_width))),
        rows_{.num_rows = shape.num_rows,
              .width = shape.row_width,
              .pages = {reinterpret_cast<PageId*>(row_memory_.data()),
                        Index(PageRows::Entries(shape.num_rows, shape.row_width))}},
        bytes_(PlanStorageBytes(shape.capacity, shape.work, shape.new_pages)),
        memory_(Filled("plan", bytes_.device)),
        pinned_("packed step", bytes_.pinned),
        device_carver_(DeviceCarver(memory_)),
        pinned_carver_(pinned_.bytes()),
        storage_(shape.capacity, shape.work, shape.new_pages, rows_, device_carver_,
                 pinned_carver_) {}

  void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) override {
    storage_.Pack(seqs, uses);
  }
  void Corrupt(FunctionRef<void(const PackedStep&)> change) override {
    change(PackedAt(pinned_.data(), shape_.capacity));
  }

  void Run() override {
    storage_.Upload(stream_);
    if (!graph_) {
      graph_ = Graph::Capture(stream_, [&] { storage_.Launch(stream_, status_.word()); });
    }
    graph_->Launch(stream_);
    stream_.Synchronize();
  }

  PlanCopy Copy() override {
    const Plan& plan = storage_.plan();
    return {.seq_counts = ToHost(std::span(plan.seq_counts, 1))[0],
            .counts = ToHost(std::span(plan.counts, 1))[0],
            .page_rows = ToHost(plan.page_rows),
            .row_of = ToHost(plan.row_of),
            .kv_len = ToHost(plan.kv_len),
            .committed = ToHost(plan.committed),
            .q_offset = ToHost(plan.q_offset),
            .tree_masks = ToHost(plan.tree_masks),
            .tiles = ToHost(plan.tiles),
            .workers = ToHost(plan.workers),
            .merges = ToHost(plan.merges)};
  }

  std::string TakeFault() override {
    status_.Read(stream_);
    status_.Clear(stream_);
    stream_.Synchronize();
    const std::optional<DeviceReport> report = status_.report();
    if (!report) return "";
    switch (report->fault) {
      case DeviceFault::kCapacity:
        return "capacity";
      case DeviceFault::kPage:
        return "page";
      case DeviceFault::kToken:
        return "tree";
      default:
        return Describe(*report);
    }
  }

 private:
  std::byte* NewBlock(size_t bytes) override {
    block_.emplace(Filled("outputs", ByteOffset(bytes)));
    return block_->data();
  }
  std::vector<std::byte> CopyBlock() override {
    stream_.Synchronize();
    return ToHost(std::span<const std::byte>(block_->bytes()));
  }
  void DoFlat(const StepCapacity& capacity, const FlatIndices& out) override {
    ExportFlatIndices(storage_, capacity, out, stream_, status_.word());
  }
  void DoTable(const StepCapacity& capacity, const BlockTable& out) override {
    ExportBlockTable(storage_, capacity, out, stream_, status_.word());
  }
  void DoDrafts(const StepCapacity& capacity, const DraftRows& out) override {
    ExportDraftRows(storage_, capacity, out, stream_, status_.word());
  }

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
  std::optional<DeviceBuffer> block_;
};

}  // namespace

std::string MachineProblem() { return DeviceProblem(); }

std::unique_ptr<TestMachine> MakeMachine(const MachineShape& shape) {
  return std::make_unique<DeviceMachine>(shape);
}

}  // namespace quire::cuda
