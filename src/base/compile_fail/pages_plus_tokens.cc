// Pages and tokens do not add.
// Mismatch: PageTag TokenTag
#include "base/units.h"

namespace quire {

#ifdef QUIRE_WRONG
using Ahead = TokenCount;
#else
using Ahead = PageCount;
#endif

PageCount Reserved(PageCount pages, Ahead ahead) { return pages + ahead; }

}  // namespace quire
