// Pages and tokens do not compare: the bound of a loop is in the loop's own unit.
// Mismatch: PageTag TokenTag
#include "base/units.h"

namespace quire {

#ifdef QUIRE_WRONG
using Limit = TokenCount;
#else
using Limit = PageCount;
#endif

bool Fits(PageCount pages, Limit limit) { return pages < limit; }

}  // namespace quire
