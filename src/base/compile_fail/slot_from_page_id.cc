// A page is no slot: only the page size knows where it begins.
// Mismatch: PageIdTag SlotTag
#include "base/units.h"

namespace quire {

Slot FirstSlot(PageSize page_size, PageId page) {
#ifdef QUIRE_WRONG
  (void)page_size;
  return Slot(page);
#else
  return page_size.SlotOf(page, 0);
#endif
}

}  // namespace quire
