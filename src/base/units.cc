#include "base/units.h"

#include "base/error.h"

namespace quire::internal {

void ThrowUnitOverflow(const char* unit, char op, AnyInteger a, AnyInteger b) {
  throw Error(ErrorCode::kOverflow, "{}: {} {} {} does not fit", unit, a, op, b);
}

void ThrowUnitRange(const char* unit, AnyInteger value) {
  throw Error(ErrorCode::kOverflow, "{}: {} does not fit", unit, value);
}

void ThrowPageSize(int64_t value) {
  throw Error(ErrorCode::kInvalidArgument, "page_size: expected {}..{} tokens per page, got {}",
              PageSize::kMin, PageSize::kMax, value);
}

void ThrowPageOffset(int64_t offset, int64_t page_size) {
  throw Error(ErrorCode::kInvalidArgument, "page offset: expected 0..{} (page_size {} - 1), got {}",
              page_size - 1, page_size, offset);
}

}  // namespace quire::internal
