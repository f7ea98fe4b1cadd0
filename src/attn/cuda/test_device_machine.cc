#include "attn/cuda/test_device_machine.h"

#include <memory>

#include "attn/checks.h"

namespace quire::cuda {

DeviceBuffer UnwrittenBuffer(const char* name, ByteOffset bytes) {
  DeviceBuffer buffer(name, bytes);
  FillAndWait(buffer.bytes(), static_cast<int>(kUnwritten), "cudaMemset");
  Check(cudaDeviceSynchronize(), "cudaMemset");
  return buffer;
}

DeviceMachine::DeviceMachine(const MachineShape& shape)
    : shape_(shape),
      row_memory_(UnwrittenBuffer(
          "page rows",
          ByteOffset(sizeof(PageId)) * PageRows::Entries(shape.num_rows, shape.row_width))),
      rows_{.num_rows = shape.num_rows,
            .width = shape.row_width,
            .pages = {reinterpret_cast<PageId*>(row_memory_.data()),
                      Index(PageRows::Entries(shape.num_rows, shape.row_width))}},
      bytes_(PlanStorageBytes(shape.capacity, shape.work, shape.new_pages)),
      memory_(UnwrittenBuffer("plan", bytes_.device)),
      pinned_("packed step", bytes_.pinned),
      device_carver_(DeviceCarver(memory_)),
      pinned_carver_(pinned_.bytes()),
      storage_(shape.capacity, shape.work, shape.new_pages, rows_, device_carver_, pinned_carver_) {
}

void DeviceMachine::Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  storage_.Pack(seqs, uses);
}

void DeviceMachine::Corrupt(FunctionRef<void(const PackedStep&)> change) {
  change(PackedAt(pinned_.data(), shape_.capacity));
}

void DeviceMachine::Run() {
  storage_.Upload(stream_);
  if (!graph_) {
    graph_ = Graph::Capture(stream_, [&] { storage_.Launch(stream_, status_.word()); });
  }
  graph_->Launch(stream_);
  stream_.Synchronize();
}

PlanCopy DeviceMachine::Copy() {
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

std::string DeviceMachine::TakeFault() {
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

std::string MachineProblem() { return DeviceProblem(); }

std::unique_ptr<TestMachine> MakeMachine(const MachineShape& shape) {
  return std::make_unique<DeviceMachine>(shape);
}

}  // namespace quire::cuda
