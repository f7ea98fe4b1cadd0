// Faults by their numbers, as QUIRE_REVERT spells them.
#ifndef QUIRE_BASE_FAULT_NAMES_H_
#define QUIRE_BASE_FAULT_NAMES_H_

#include <string_view>

#include "base/faults.h"

namespace quire {

// "25556" is Fault::kTilesCountedInPages. Throws Error(kInvalidArgument) if no fault has the number, or
// this build (without QUIRE_FAULTS) can put none back.
Faults ParseFault(std::string_view number);

}  // namespace quire

#endif  // QUIRE_BASE_FAULT_NAMES_H_
