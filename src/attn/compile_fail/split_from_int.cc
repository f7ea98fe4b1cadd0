// A block size without its unit.
// Mismatch: int TokenTag
#include "attn/capacity.h"

namespace quire {

#ifdef QUIRE_WRONG
const WorkShape kShape{.split = 1024};
#else
const WorkShape kShape{.split = TokenCount(1024)};
#endif

}  // namespace quire
