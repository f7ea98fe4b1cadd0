// A page count where a token count is due.
// Mismatch: PageTag TokenTag
#include "base/units.h"

namespace quire {

#ifdef QUIRE_WRONG
using Length = PageCount;
#else
using Length = TokenCount;
#endif

PageCount Pages(PageSize page_size, Length length) { return page_size.PagesFor(length); }

}  // namespace quire
