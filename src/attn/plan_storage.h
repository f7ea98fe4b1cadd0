// The memory of plans on the host, and making them there.
#ifndef QUIRE_ATTN_PLAN_STORAGE_H_
#define QUIRE_ATTN_PLAN_STORAGE_H_

#include <optional>
#include <span>

#include "attn/capacity.h"
#include "attn/plan.h"
#include "attn/plan_arrays.h"
#include "attn/sequence_step.h"
#include "attn/step_pack.h"
#include "base/executor.h"
#include "base/faults.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/buffer.h"

namespace quire {

// What a PlanStorage takes for its arrays; the rows of pages come to that where they are its own.
ByteOffset PlanStorageBytes(const StepCapacity& capacity, const WorkShape& shape);

// Sized once from a capacity; making a plan allocates nothing. One thread at a time.
class PlanStorage {
 public:
  // With memory of its own, and a row of pages for every sequence. Throws Error(kInvalidArgument) if
  // a factor is out of range.
  PlanStorage(const StepCapacity& capacity, const WorkShape& shape);
  // Takes PlanStorageBytes(capacity, shape) from `memory`, which may not be counting. Several
  // storages may share the rows, for steps that come one after the other.
  PlanStorage(const StepCapacity& capacity, const WorkShape& shape, const PageRows& rows,
              Carver& memory);
  PlanStorage(PlanStorage&&) = default;  // not copied: plans view this storage's memory
  PlanStorage& operator=(PlanStorage&&) = default;

  const StepCapacity& capacity() const { return capacity_; }
  const WorkShape& work() const { return shape_; }

  // The plan of these sequences, valid until the next Make: sequence b has row b, and all of its
  // pages are looked at and copied there. Throws Error(kInvalidArgument) for lengths, pages or trees
  // that cannot be and Error(kCapacityExceeded) for more than the capacity; the last plan is then
  // still whole.
  const Plan& Make(std::span<const SequenceStep> seqs, Executor& executor, Faults faults = {});

  // The same where rows keep their pages from step to step: uses[b] is for seqs[b], and only pages
  // that are new are looked at. Throws as StepPacker::Pack; then nothing has changed.
  const Plan& Make(std::span<const SequenceStep> seqs, std::span<const RowUse> uses,
                   Executor& executor, Faults faults = {});

 private:
  friend ByteOffset PlanStorageBytes(const StepCapacity&, const WorkShape&);

  // All that is laid out, with the copies that Make edits.
  struct Arrays {
    Arrays(const StepCapacity& capacity, const WorkShape& shape, Carver& memory);

    PlanArrays plan;
    std::span<SequenceStep> steps;  // [num_seqs]
    std::span<RowUse> uses;         // [num_seqs]
  };

  PlanStorage(const StepCapacity& capacity, const WorkShape& shape, Buffer memory);
  PlanStorage(const StepCapacity& capacity, const WorkShape& shape, Carver memory);
  const Plan& MakeChecked(std::span<const SequenceStep> seqs, std::span<const RowUse> uses,
                          Executor& executor, Faults faults);
  void CopyPages(std::span<const SequenceStep> seqs, std::span<const RowUse> uses,
                 Executor& executor, Faults faults) const;
  void View();

  std::optional<Buffer> memory_;  // where it is this storage's own
  StepCapacity capacity_;
  WorkShape shape_;
  PageRows rows_;
  Arrays arrays_;
  StepPacker packer_;
  Plan plan_;
};

}  // namespace quire

#endif  // QUIRE_ATTN_PLAN_STORAGE_H_
