// Checks of outputs that the exporters of host and device both make before they write anything: every
// span is as long as its sizing function says, or Error(kInvalidArgument) names it.
#ifndef QUIRE_INTEROP_EXPORT_CHECKS_H_
#define QUIRE_INTEROP_EXPORT_CHECKS_H_

#include <cstdint>
#include <span>

#include "base/faults.h"
#include "base/units.h"
#include "interop/capacity.h"
#include "interop/export.h"

namespace quire {

void RequireOutputs(const FlatIndices& out, const StepCapacity& capacity, Faults faults = {});
void RequireOutputs(const FlatPages& out, const StepCapacity& capacity);
void RequireOutputs(const DraftRows& out, const StepCapacity& capacity, Faults faults = {});
void RequireOutputs(const DraftTables& out, const StepCapacity& capacity);

// What block tables and the unified page table share: they differ in name and width.
struct SequenceTable {
  const char* name = nullptr;
  PageCount width{0};
  int32_t fill = 0;
  std::span<int32_t> table;    // [num_seqs, width]
  std::span<int32_t> kv_lens;  // [num_seqs]
};
SequenceTable TableOf(const BlockTable& out, const StepCapacity& capacity);
SequenceTable TableOf(const UnifiedPageTable& out, const StepCapacity& capacity);
void RequireOutputs(const SequenceTable& out, const StepCapacity& capacity);

}  // namespace quire

#endif  // QUIRE_INTEROP_EXPORT_CHECKS_H_
