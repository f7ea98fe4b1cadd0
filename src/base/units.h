// The units of paging, as types.
//
// A buffer sized in pages and written in tokens is the bug this project exists to rule out, so a
// number of pages and a number of tokens are different types, nothing converts one to the other
// implicitly, and only PageSize converts them explicitly.
//
//   TokenCount   a number of tokens; a position is the number of tokens before it
//   PageCount    a number of pages
//   PageId       which page of a pool; page 0 is the scratch page
//   Slot         which token place of a pool: page * page_size + offset
//   ByteOffset   a number of bytes, always 64-bit
//   PageSize     tokens per page, 1..256
//
// Arithmetic that overflows throws Error(kOverflow) with both operands (on a device it wraps: host
// code has checked every input before a launch).
#ifndef QUIRE_BASE_UNITS_H_
#define QUIRE_BASE_UNITS_H_

#include <compare>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/host_device.h"

namespace quire {
namespace internal {

using AnyInteger = __int128;  // holds what was given, signed or not, for the message
[[noreturn]] void ThrowUnitOverflow(const char* unit, char op, AnyInteger a, AnyInteger b);
[[noreturn]] void ThrowUnitRange(const char* unit, AnyInteger value);
[[noreturn]] void ThrowPageSize(int64_t value);
[[noreturn]] void ThrowPageOffset(int64_t offset, int64_t page_size);

#ifdef __CUDA_ARCH__
#define QUIRE_UNIT_OP(op, builtin, unit, Rep, a, b) return static_cast<Rep>((a)op(b))
#else
#define QUIRE_UNIT_OP(op, builtin, unit, Rep, a, b)               \
  Rep result{};                                                   \
  if (builtin((a), (b), &result)) {                               \
    ::quire::internal::ThrowUnitOverflow(unit, #op[0], (a), (b)); \
  }                                                               \
  return result
#endif

template <class Rep>
QUIRE_HD constexpr Rep AddChecked(const char* unit, Rep a, Rep b) {
  (void)unit;
  QUIRE_UNIT_OP(+, __builtin_add_overflow, unit, Rep, a, b);
}
template <class Rep>
QUIRE_HD constexpr Rep SubtractChecked(const char* unit, Rep a, Rep b) {
  (void)unit;
  QUIRE_UNIT_OP(-, __builtin_sub_overflow, unit, Rep, a, b);
}
template <class Rep, std::integral I>
QUIRE_HD constexpr Rep MultiplyChecked(const char* unit, Rep a, I b) {
  (void)unit;
  QUIRE_UNIT_OP(*, __builtin_mul_overflow, unit, Rep, a, b);
}
#undef QUIRE_UNIT_OP

// A signed integer tagged with what it counts or names.
template <class Tag>
class Unit {
 public:
  using Rep = typename Tag::Rep;

  constexpr Unit() = default;
  // From any plain integer that fits; never from another unit.
  template <std::integral I>
  QUIRE_HD constexpr explicit Unit(I value) : value_(static_cast<Rep>(value)) {
#ifndef __CUDA_ARCH__
    if (!std::in_range<Rep>(value)) ThrowUnitRange(Tag::kName, value);
#endif
  }

  QUIRE_HD constexpr Rep raw() const { return value_; }

  friend constexpr auto operator<=>(const Unit&, const Unit&) = default;

 private:
  Rep value_ = 0;
};

}  // namespace internal

// What counts can do and names cannot: add, subtract, scale, and divide like by like.
template <class Tag>
class Count : public internal::Unit<Tag> {
 public:
  using Base = internal::Unit<Tag>;
  using Rep = typename Tag::Rep;
  using Base::Base;

  QUIRE_HD friend constexpr Count operator+(Count a, Count b) {
    return Count(internal::AddChecked<Rep>(Tag::kName, a.raw(), b.raw()));
  }
  QUIRE_HD friend constexpr Count operator-(Count a, Count b) {
    return Count(internal::SubtractChecked<Rep>(Tag::kName, a.raw(), b.raw()));
  }
  template <std::integral I>
  QUIRE_HD friend constexpr Count operator*(Count a, I times) {
    return Count(internal::MultiplyChecked<Rep>(Tag::kName, a.raw(), times));
  }
  template <std::integral I>
  QUIRE_HD friend constexpr Count operator*(I times, Count a) {
    return a * times;
  }
  QUIRE_HD constexpr Count& operator+=(Count b) { return *this = *this + b; }
  QUIRE_HD constexpr Count& operator-=(Count b) { return *this = *this - b; }
};

struct TokenTag {
  using Rep = int64_t;
  static constexpr const char* kName = "TokenCount";
};
struct PageTag {
  using Rep = int64_t;
  static constexpr const char* kName = "PageCount";
};
struct ByteTag {
  using Rep = int64_t;
  static constexpr const char* kName = "ByteOffset";
};
struct PageIdTag {
  using Rep = int32_t;
  static constexpr const char* kName = "PageId";
};
struct SlotTag {
  using Rep = int64_t;
  static constexpr const char* kName = "Slot";
};

using TokenCount = Count<TokenTag>;
using PageCount = Count<PageTag>;
using ByteOffset = Count<ByteTag>;
using PageId = internal::Unit<PageIdTag>;
using Slot = internal::Unit<SlotTag>;

// Padding points here: the pool never hands this page out, padded writes land in it, and kernels
// may load it but no value of it reaches a result.
inline constexpr PageId kScratchPage{0};

// The smallest / largest of two counts of one unit, for host and device.
template <class Tag>
QUIRE_HD constexpr Count<Tag> Min(Count<Tag> a, Count<Tag> b) {
  return b < a ? b : a;
}
template <class Tag>
QUIRE_HD constexpr Count<Tag> Max(Count<Tag> a, Count<Tag> b) {
  return a < b ? b : a;
}

// How many pieces of `piece` cover `whole` (both >= 0, piece > 0). Like by like: the result is a
// plain number.
template <class Tag>
QUIRE_HD constexpr int64_t CeilDiv(Count<Tag> whole, Count<Tag> piece) {
  return whole.raw() / piece.raw() + (whole.raw() % piece.raw() != 0 ? 1 : 0);
}

// Tokens per page. The only converter between tokens and pages.
class PageSize {
 public:
  static constexpr int kMin = 1;
  static constexpr int kMax = 256;

  // Throws Error(kInvalidArgument) unless kMin <= tokens <= kMax.
  QUIRE_HD constexpr explicit PageSize(int64_t tokens) : tokens_(static_cast<int32_t>(tokens)) {
#ifndef __CUDA_ARCH__
    if (tokens < kMin || tokens > kMax) internal::ThrowPageSize(tokens);
#endif
  }

  QUIRE_HD constexpr int32_t raw() const { return tokens_; }
  QUIRE_HD constexpr TokenCount tokens() const { return TokenCount(tokens_); }

  // Pages that hold `tokens` tokens, the last one possibly partly.
  QUIRE_HD constexpr PageCount PagesFor(TokenCount tokens) const {
    return PageCount(CeilDiv(tokens, this->tokens()));
  }
  // Pages that `tokens` tokens fill completely. Also the page index of position `tokens`.
  QUIRE_HD constexpr PageCount FullPages(TokenCount tokens) const {
    return PageCount(tokens.raw() / tokens_);
  }
  QUIRE_HD constexpr TokenCount TokensIn(PageCount pages) const {
    return this->tokens() * pages.raw();
  }
  // Where position `position` stands within its page.
  QUIRE_HD constexpr int32_t OffsetOf(TokenCount position) const {
    return static_cast<int32_t>(position.raw() % tokens_);
  }

  // Throws Error(kInvalidArgument) unless 0 <= offset < page size.
  QUIRE_HD constexpr Slot SlotOf(PageId page, int32_t offset) const {
#ifndef __CUDA_ARCH__
    if (offset < 0 || offset >= tokens_) internal::ThrowPageOffset(offset, tokens_);
#endif
    return Slot(int64_t{page.raw()} * tokens_ + offset);
  }
  QUIRE_HD constexpr PageId PageOf(Slot slot) const { return PageId(slot.raw() / tokens_); }
  QUIRE_HD constexpr int32_t OffsetOf(Slot slot) const {
    return static_cast<int32_t>(slot.raw() % tokens_);
  }

  friend constexpr auto operator<=>(const PageSize&, const PageSize&) = default;

 private:
  int32_t tokens_;
};

static_assert(sizeof(PageId) == 4 && std::is_trivially_copyable_v<PageId>);
static_assert(sizeof(ByteOffset) == 8 && sizeof(Slot) == 8 && sizeof(TokenCount) == 8);

}  // namespace quire

#endif  // QUIRE_BASE_UNITS_H_
