// What the tests of this folder share: the pages of leases, as numbers to compare.
#ifndef QUIRE_CACHE_TEST_LEASES_H_
#define QUIRE_CACHE_TEST_LEASES_H_

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"

namespace quire {

inline std::vector<int32_t> Ids(const std::vector<PageLease>& leases) {
  std::vector<int32_t> ids;
  ids.reserve(leases.size());
  for (const PageLease& lease : leases) ids.push_back(lease.page().raw());
  return ids;
}

}  // namespace quire

#endif  // QUIRE_CACHE_TEST_LEASES_H_
