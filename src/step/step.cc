#include "step/step.h"

namespace quire {

const char* RowFaultName(RowFault fault) {
  switch (fault) {
    case RowFault::kNone:
      return "no fault";
    case RowFault::kLogitsNotFinite:
      return "logits that are not finite";
  }
  return "an unknown fault";
}

}  // namespace quire
