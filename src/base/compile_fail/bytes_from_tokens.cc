// A number of tokens is no number of bytes: a row has its size.
// Mismatch: TokenTag ByteTag
#include "base/units.h"

namespace quire {

ByteOffset Bytes(TokenCount tokens, ByteOffset row) {
#ifdef QUIRE_WRONG
  (void)row;
  return ByteOffset(tokens);
#else
  return row * tokens.raw();
#endif
}

}  // namespace quire
