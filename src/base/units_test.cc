#include "base/units.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "testing/error_message.h"

namespace quire {
namespace {

using testing::ErrorMessage;

TEST(UnitsTest, PageSizeConvertsBetweenTokensAndPages) {
  for (int raw : {1, 2, 3, 16, 61, 64, 128, 256}) {
    const PageSize page_size(raw);
    EXPECT_EQ(page_size.PagesFor(TokenCount(0)), PageCount(0));
    EXPECT_EQ(page_size.PagesFor(TokenCount(1)), PageCount(1));
    EXPECT_EQ(page_size.PagesFor(TokenCount(raw)), PageCount(1));
    EXPECT_EQ(page_size.PagesFor(TokenCount(raw + 1)), PageCount(2));
    EXPECT_EQ(page_size.FullPages(TokenCount(raw + raw - 1)), PageCount(1));
    EXPECT_EQ(page_size.TokensIn(PageCount(7)), TokenCount(7 * raw));
    for (int64_t slot = 0; slot < 3 * raw; ++slot) {
      EXPECT_EQ(page_size.SlotOf(page_size.PageOf(Slot(slot)), page_size.OffsetOf(Slot(slot))),
                Slot(slot));
    }
  }
}

TEST(UnitsTest, PageSizeOutsideOneTo256IsRefusedWithTheValue) {
  for (int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{257}, int64_t{1} << 32}) {
    const std::string message =
        ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)PageSize(bad); });
    EXPECT_EQ(message, "page_size: expected 1..256 tokens per page, got " + std::to_string(bad));
  }
}

TEST(UnitsTest, OffsetOutsideThePageIsRefused) {
  const PageSize page_size(64);
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kInvalidArgument, [&] { (void)page_size.SlotOf(PageId(1), 64); }),
      "page offset: expected 0..63 (page_size 64 - 1), got 64");
}

TEST(UnitsTest, OverflowIsAnErrorThatNamesTheOperands) {
  const TokenCount most(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow, [&] { (void)(most + TokenCount(1)); }),
            "TokenCount: 9223372036854775807 + 1 does not fit");
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow, [&] { (void)(most * 2); }),
            "TokenCount: 9223372036854775807 * 2 does not fit");
  EXPECT_EQ(
      ErrorMessage(ErrorCode::kOverflow, [&] { (void)(TokenCount(0) - most - TokenCount(2)); }),
      "TokenCount: -9223372036854775807 - 2 does not fit");
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow, [&] { (void)(TokenCount(2) * SIZE_MAX); }),
            "TokenCount: 2 * 18446744073709551615 does not fit");
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow, [&] { (void)TokenCount(SIZE_MAX); }),
            "TokenCount: 18446744073709551615 does not fit");
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow, [&] { (void)PageId(int64_t{1} << 31); }),
            "PageId: 2147483648 does not fit");
  EXPECT_EQ(ErrorMessage(ErrorCode::kOverflow,
                         [&] { (void)PageSize(256).TokensIn(PageCount(int64_t{1} << 56)); }),
            "TokenCount: 256 * 72057594037927936 does not fit");
}

TEST(UnitsTest, SlotsOfTheLastPageIdDoNotWrap) {
  const PageId last(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(PageSize(256).SlotOf(last, 255), Slot((int64_t{1} << 39) - 1));
}

}  // namespace
}  // namespace quire
