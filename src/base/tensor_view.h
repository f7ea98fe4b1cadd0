// A non-owning view of a dense, row-major array of up to four dimensions with its element type.
//
// The innermost dimension is contiguous; outer strides are free, so that a slice of a larger array
// is a view too. TensorView<const ...>-style constness is by type: ConstTensorView cannot be
// written through. A view knows whose memory it is of: a row of a device can be handed to a kernel
// (Address), but not read on the host (Row).
#ifndef QUIRE_BASE_TENSOR_VIEW_H_
#define QUIRE_BASE_TENSOR_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/narrow_float.h"

namespace quire {

enum class DType { kF32, kBf16 };

// Who can touch a block of memory.
enum class MemorySide { kHost, kDevice };

const char* DTypeName(DType dtype);
constexpr int64_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

template <class T>
constexpr DType DTypeOf() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, Bf16>);
  return std::is_same_v<T, float> ? DType::kF32 : DType::kBf16;
}

namespace internal {

// Byte is `std::byte` or `const std::byte`.
template <class Byte>
class BasicTensorView {
 public:
  static constexpr int kMaxRank = 4;
  template <class T>
  using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  BasicTensorView() = default;

  // A contiguous array of the given shape.
  template <class T>
  BasicTensorView(T* data, std::initializer_list<int64_t> shape,
                  MemorySide side = MemorySide::kHost)
      : BasicTensorView(reinterpret_cast<Byte*>(data), DTypeOf<std::remove_const_t<T>>(), shape,
                        side) {}
  BasicTensorView(Byte* data, DType dtype, std::initializer_list<int64_t> shape, MemorySide side)
      : data_(data), dtype_(dtype), side_(side), rank_(static_cast<int>(shape.size())) {
    Require(shape.size() >= 1 && shape.size() <= kMaxRank,
            "tensor view: expected 1..{} dimensions, got {}", kMaxRank, shape.size());
    int i = 0;
    for (int64_t extent : shape) {
      Require(extent >= 0, "tensor view: dimension {} is negative: {}", i, extent);
      shape_[i++] = extent;
    }
    int64_t stride = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      stride_[d] = stride;
      Require(!__builtin_mul_overflow(stride, shape_[d], &stride),
              "tensor view: {} elements along dimension {} overflow", shape_[d], d);
    }
  }

  // A mutable view reads as a const one.
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)
      : data_(other.data_),
        dtype_(other.dtype_),
        side_(other.side_),
        rank_(other.rank_),
        shape_(other.shape_),
        stride_(other.stride_) {}

  // The same data with another distance, in elements, between the entries of the first dimension.
  BasicTensorView WithRowStride(int64_t elements) const {
    Require(rank_ >= 2 && elements >= shape_[1] * stride_[1],
            "tensor view: row stride {} is less than a row of {}", elements,
            rank_ >= 2 ? shape_[1] * stride_[1] : 0);
    BasicTensorView view = *this;
    view.stride_[0] = elements;
    return view;
  }

  // The same array, but of every row only the `count` values from `begin` on.
  BasicTensorView Columns(int64_t begin, int64_t count) const {
    const int64_t width = rank_ >= 1 ? shape_[rank_ - 1] : 0;
    Require(rank_ >= 1 && begin >= 0 && count >= 0 && begin <= width && count <= width - begin,
            "tensor view: expected columns within 0..{}, got {} from {} on", width, count, begin);
    BasicTensorView view = *this;
    if (data_ != nullptr) view.data_ += begin * DTypeBytes(dtype_);
    view.shape_[rank_ - 1] = count;
    return view;
  }

  // The same shape and strides, `elements` further on.
  BasicTensorView Shifted(int64_t elements) const {
    BasicTensorView view = *this;
    if (data_ != nullptr) view.data_ += elements * DTypeBytes(dtype_);
    return view;
  }

  // The first `count` entries of the first dimension.
  BasicTensorView FirstRows(int64_t count) const {
    Require(rank_ >= 1 && count >= 0 && count <= shape_[0],
            "tensor view: expected 0..{} rows, got {}", rank_ >= 1 ? shape_[0] : 0, count);
    BasicTensorView view = *this;
    view.shape_[0] = count;
    return view;
  }

  // Rows of `parts` equal parts as [rows, parts, width]: the heads of a projection.
  BasicTensorView Parts(int64_t parts) const {
    Require(rank_ == 2 && parts >= 1 && shape_[1] % parts == 0,
            "tensor view: expected rows of {} equal parts, got {}", parts, ShapeString());
    BasicTensorView view = *this;
    view.rank_ = 3;
    view.shape_[1] = parts;
    view.shape_[2] = shape_[1] / parts;
    view.stride_[1] = view.shape_[2];
    view.stride_[2] = 1;
    return view;
  }

  DType dtype() const { return dtype_; }
  MemorySide side() const { return side_; }
  int rank() const { return rank_; }
  int64_t dim(int d) const { return shape_[d]; }
  int64_t stride(int d) const { return stride_[d]; }
  bool empty() const { return data_ == nullptr; }
  std::string ShapeString() const;

  // The first element, for a kernel of the memory's own side. T must be the element type.
  template <class T>
  Element<T>* Address() const {
    QUIRE_DCHECK(DTypeOf<T>() == dtype_);
    return reinterpret_cast<Element<T>*>(data_);
  }
  // The same, whatever the element type.
  Byte* data() const { return data_; }

  // The start of the row at (i) or (i, j), to be read or written by the host. T must be the element
  // type.
  template <class T>
  Element<T>* Row(int64_t i, int64_t j = 0) const {
    QUIRE_DCHECK(DTypeOf<T>() == dtype_);
    QUIRE_DCHECK(side_ == MemorySide::kHost, "row {} is in a device's memory", i);
    QUIRE_DCHECK(i >= 0 && i < shape_[0], "row {} of {}", i, shape_[0]);
    QUIRE_DCHECK(j == 0 || (rank_ >= 2 && j > 0 && j < shape_[1]), "row {}, {}", i, j);
    return reinterpret_cast<Element<T>*>(data_) + i * stride_[0] + j * stride_[1];
  }

 private:
  template <class>
  friend class BasicTensorView;

  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  MemorySide side_ = MemorySide::kHost;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> stride_{};
};

}  // namespace internal

using TensorView = internal::BasicTensorView<std::byte>;
using ConstTensorView = internal::BasicTensorView<const std::byte>;

// Throws Error(kInvalidArgument) naming `name`, the expected and the actual shape, unless equal.
void RequireShape(const char* name, const ConstTensorView& view,
                  std::initializer_list<int64_t> expected);

}  // namespace quire

#endif  // QUIRE_BASE_TENSOR_VIEW_H_
