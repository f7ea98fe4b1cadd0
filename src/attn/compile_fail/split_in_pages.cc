// sglang #25556: the planner cut the work in pages, the kernel in tokens.
// Mismatch: PageTag TokenTag
#include "attn/capacity.h"

namespace quire {

#ifdef QUIRE_WRONG
const WorkShape kShape{.split = PageCount(16)};
#else
const WorkShape kShape{.split = TokenCount(1024)};
#endif

}  // namespace quire
