// A slot is no page: only the page size knows which page it is in.
// Mismatch: SlotTag PageIdTag
#include "base/units.h"

namespace quire {

PageId PageOf(PageSize page_size, Slot slot) {
#ifdef QUIRE_WRONG
  (void)page_size;
  return PageId(slot);
#else
  return page_size.PageOf(slot);
#endif
}

}  // namespace quire
