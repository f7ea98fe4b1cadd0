#include "attn/cuda/plan.h"

#include "attn/checks.h"

namespace quire::cuda {

namespace {

std::optional<ScheduleArrays> TakeSchedule(const StepCapacity& capacity,
                                           const std::optional<WorkShape>& shape, Carver& device) {
  if (!shape) return std::nullopt;
  return ScheduleArrays(capacity, *shape, device);
}

}  // namespace

PlanStorageMemory PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape,
                                   PageCount new_pages, const std::optional<WorkShape>& selection) {
  Carver device, pinned;
  const PlanArrays counted(capacity, shape, new_pages, device);
  TakeSchedule(capacity, selection, device);
  pinned.TakeBytes(PackedStepBytes(capacity, new_pages));
  return {.device = device.used(), .pinned = pinned.used()};
}

PlanStorage::PlanStorage(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
                         const PageRows& rows, Carver& device, Carver& pinned,
                         const std::optional<WorkShape>& selection)
    : capacity_(capacity),
      shape_(shape),
      arrays_(capacity, shape, new_pages, device),
      selection_arrays_(TakeSchedule(capacity, selection, device)),
      pinned_(pinned.TakeBytes(PackedStepBytes(capacity, new_pages))),
      packer_(capacity, new_pages, rows, pinned_),
      seqs_(BuildOf(arrays_, capacity, new_pages, rows)),
      schedule_(BuildOf(arrays_.schedule, capacity, shape)),
      step_(StepOf(seqs_)),
      plan_(PlanOf(arrays_, capacity, shape, rows, MemorySide::kDevice)) {
  if (!selection) return;
  selection_ = BuildOf(*selection_arrays_, capacity, *selection);
  selection_plan_ = plan_;
  static_cast<Schedule&>(*selection_plan_) = ScheduleOf(*selection_arrays_, capacity, *selection);
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

}  // namespace quire::cuda
