// A plain number is no page size.
// Mismatch: int PageSize
#include "base/units.h"

namespace quire {

#ifdef QUIRE_WRONG
PageSize Default() { return 64; }
#else
PageSize Default() { return PageSize(64); }
#endif

}  // namespace quire
