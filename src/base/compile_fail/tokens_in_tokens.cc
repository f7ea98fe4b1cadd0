// A token count where a page count is due.
// Mismatch: TokenTag PageTag
#include "base/units.h"

namespace quire {

#ifdef QUIRE_WRONG
using Length = TokenCount;
#else
using Length = PageCount;
#endif

TokenCount Tokens(PageSize page_size, Length length) { return page_size.TokensIn(length); }

}  // namespace quire
