#include "base/fault_names.h"

#include <fmt/format.h>

#include "base/error.h"

namespace quire {

Faults ParseFault(std::string_view number) {
#ifdef QUIRE_FAULTS
  for (const Fault fault :
       {Fault::kFlatIndexSizedInPages, Fault::kTilesCountedInPages, Fault::kIndexKeyLayoutMismatch,
        Fault::kSerialPageTableFill, Fault::kDraftRowsWithoutBranches, Fault::kDraftsNotSeen}) {
    if (fmt::format("{}", static_cast<int>(fault)) == number) return Faults(fault);
  }
  throw Error(ErrorCode::kInvalidArgument, "QUIRE_REVERT: no fault is called '{}'", number);
#else
  throw Error(ErrorCode::kInvalidArgument,
              "QUIRE_REVERT: this build has no faults to put back, got '{}'", number);
#endif
}

}  // namespace quire
