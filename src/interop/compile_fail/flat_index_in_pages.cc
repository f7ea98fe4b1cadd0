// sglang #24587: a flat index has one entry per token, so its size is no number of pages.
// Mismatch: TokenTag PageTag
#include "interop/capacity.h"

namespace quire {

#ifdef QUIRE_WRONG
using Entries = PageCount;
#else
using Entries = TokenCount;
#endif

Entries FlatIndexSize(const StepCapacity& capacity) { return FlatIndexEntries(capacity); }

}  // namespace quire
