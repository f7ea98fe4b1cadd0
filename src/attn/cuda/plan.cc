#include "attn/cuda/plan.h"

#include "attn/checks.h"

namespace quire::cuda {

PlanStorageMemory PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape,
                                   PageCount new_pages) {
  Carver device, pinned;
  const PlanArrays counted(capacity, shape, new_pages, device);
  pinned.TakeBytes(PackedStepBytes(capacity, new_pages));
  return {.device = device.used(), .pinned = pinned.used()};
}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
                         PageRows& rows, Carver& device, Carver& pinned)
    : capacity_(capacity),
      shape_(shape),
      arrays_(capacity, shape, new_pages, device),
      pinned_(pinned.TakeBytes(PackedStepBytes(capacity, new_pages))),
      packer_(capacity, new_pages, rows, pinned_) {
  step_ = StepOf(arrays_, capacity, shape, new_pages, rows);
  build_ = BuildOf(arrays_, step_, shape);
  fill_ = FillOf(arrays_, step_, rows);
  plan_ = PlanOf(arrays_, capacity, shape);
}

void PlanStorage::Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  if (copied_ && !copied_->IsReached()) copied_->Synchronize();
  packed_bytes_ = packer_.Pack(seqs, uses);
}

void PlanStorage::Upload(const Stream& stream) {
  if (!copied_) copied_.emplace();
  Check(cudaMemcpyAsync(arrays_.packed.data(), pinned_.data(), Index(packed_bytes_.raw()),
                        cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync of a packed step");
  copied_->Record(stream);
}

void PlanStorage::Launch(const Stream& stream, StatusWord status) const {
  LaunchSchedule(stream, status);
  LaunchPageTable(stream, status);
}

}  // namespace quire::cuda
