#include "kernels/weight.h"

#include "base/error.h"

namespace quire {

Weight PartOf(const Weight& weight, int64_t first, int64_t count) {
  if (weight.empty()) return {};
  QUIRE_CHECK(first >= 0 && count >= 1 && first + count <= weight.count, "matrices {}..{} of {}",
              first, first + count, weight.count);
  Weight part = weight;
  part.count = count;
  part.data += first * weight.step_bytes;
  if (weight.scales != nullptr) part.scales += first * weight.scale_step;
  part.bytes = ByteOffset(weight.bytes.raw() / weight.count * count);
  return part;
}

}  // namespace quire
