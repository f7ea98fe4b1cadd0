// Plans in device memory, made there.
//
//   Pack     the host checks a step and writes it into pinned memory (attn/step_pack.h)
//   Upload   one copy of what was packed
//   Launch   one kernel: the plan by one CTA, and beside it new pages into their rows by others
//
// Upload and Launch only give work to the stream. Launch's grid and addresses follow from the
// capacity and not from the step, so a graph may record it (and all kernels that read the plan), and
// is right for every step packed and uploaded before the graph is launched.
#ifndef QUIRE_ATTN_CUDA_PLAN_H_
#define QUIRE_ATTN_CUDA_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attn/capacity.h"
#include "attn/plan.h"
#include "attn/plan_arrays.h"
#include "attn/plan_build.h"
#include "attn/sequence_step.h"
#include "attn/step_pack.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

// What a PlanStorage takes of the device's memory and of pinned memory.
struct PlanStorageMemory {
  ByteOffset device;
  ByteOffset pinned;
};
PlanStorageMemory PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape,
                                   PageCount new_pages,
                                   const std::optional<WorkShape>& selection = {});

// A plan's memory, taken once. One thread at a time.
class PlanStorage {
 public:
  // `new_pages`: the most pages that a step brings (attn/step_pack.h). `rows`, of the device, may
  // serve several storages on one stream. `selection`: how the work of choosing keys is cut, where
  // keys are chosen. Takes PlanStorageBytes(...) from the two; neither may be counting. Throws as
  // StepPacker.
  PlanStorage(const StepCapacity& capacity, const WorkShape& shape, PageCount new_pages,
              const PageRows& rows, Carver& device, Carver& pinned,
              const std::optional<WorkShape>& selection = {});

  const StepCapacity& capacity() const { return capacity_; }
  const WorkShape& work() const { return shape_; }

  // The plan, for ops and captures. What it holds is the last Launch's.
  const Plan& plan() const { return plan_; }
  // The same sequences, with the work of choosing keys; null where none are chosen.
  const Plan* selection_plan() const { return selection_plan_ ? &*selection_plan_ : nullptr; }
  const StepView& step() const { return step_; }

  // Checks and packs; waits first until the copy before is done with the pinned memory. Throws as
  // StepPacker::Pack; then nothing has changed. Every step that was packed must be uploaded and
  // launched before the next one is packed, here or in another storage of the same rows.
  void Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses);
  // The copy to the device. Not for graphs: its length is the step's own.
  void Upload(const Stream& stream);
  // What Upload copies, and where to: for those who copy it themselves, and are done with the first before
  // the next step is packed.
  std::span<const std::byte> packed() const {
    return pinned_.first(static_cast<size_t>(packed_bytes_.raw()));
  }
  std::span<std::byte> packed_on_device() const { return arrays_.packed; }
  // Its parts there. Trees may be written over, by trees of as many nodes, between the copy and Launch.
  PackedStep step_on_device() const { return PackedAt(arrays_.packed.data(), capacity_); }
  // The kernel. What it finds wrong goes to `status`; the plan of lengths that cannot be is empty.
  void Launch(const Stream& stream, StatusWord status) const;

 private:
  StepCapacity capacity_;
  WorkShape shape_;
  PlanArrays arrays_;
  std::optional<ScheduleArrays> selection_arrays_;
  std::span<std::byte> pinned_;
  StepPacker packer_;
  ByteOffset packed_bytes_;
  std::optional<Event> copied_;
  SequencesBuild seqs_;
  ScheduleBuild schedule_;
  ScheduleBuild selection_;  // without counts where no keys are chosen
  StepView step_;
  Plan plan_;
  std::optional<Plan> selection_plan_;
};

}  // namespace quire::cuda

#endif  // QUIRE_ATTN_CUDA_PLAN_H_
