#include "base/tensor_view.h"

#include <fmt/ranges.h>

namespace quire {

const char* DTypeName(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

namespace internal {

template <class Byte>
std::string BasicTensorView<Byte>::ShapeString() const {
  return fmt::format("[{}]", fmt::join(shape_.begin(), shape_.begin() + rank_, ", "));
}

template class BasicTensorView<std::byte>;
template class BasicTensorView<const std::byte>;

}  // namespace internal

void RequireShape(const char* name, const ConstTensorView& view,
                  std::initializer_list<int64_t> expected) {
  bool equal = view.rank() == static_cast<int>(expected.size());
  int d = 0;
  for (int64_t extent : expected) {
    equal = equal && view.dim(d) == extent;
    ++d;
  }
  if (equal) return;  // spelling out a shape allocates
  throw Error(ErrorCode::kInvalidArgument, "{}: expected shape [{}], got {}", name,
              fmt::join(expected, ", "), view.ShapeString());
}

}  // namespace quire
