// A store is made of pages, not of tokens.
// Mismatch: TokenTag PageTag
#include "attn/kv_store.h"

namespace quire {

#ifdef QUIRE_WRONG
using Extent = TokenCount;
#else
using Extent = PageCount;
#endif

KvStore Store(std::span<std::byte> memory, Extent extent, const KvLayout& layout) {
  return KvStore(memory, extent, layout);
}

}  // namespace quire
