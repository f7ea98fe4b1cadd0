// A query tile is cut in tokens, and has nothing to do with the page size.
// Mismatch: PageSize TokenTag
#include "attn/capacity.h"

namespace quire {

#ifdef QUIRE_WRONG
const WorkShape kShape{.query_tile = PageSize(64)};
#else
const WorkShape kShape{.query_tile = PageSize(64).tokens()};
#endif

}  // namespace quire
