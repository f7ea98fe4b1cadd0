#include "base/tensor_view.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

TEST(TensorViewTest, RowsAreWhereRowMajorOrderPutsThem) {
  std::vector<float> data(2 * 3 * 4);
  const TensorView view(data.data(), {2, 3, 4});
  EXPECT_EQ(view.Row<float>(1, 2), data.data() + 20);
  EXPECT_EQ(view.ShapeString(), "[2, 3, 4]");
  const ConstTensorView read_only = view;
  EXPECT_EQ(read_only.Row<float>(1), data.data() + 12);
}

TEST(TensorViewTest, RowStrideSkipsTheRestOfAWiderArray) {
  std::vector<Bf16> data(5 * 10);
  const TensorView view = TensorView(data.data(), {5, 4}).WithRowStride(10);
  EXPECT_EQ(view.Row<Bf16>(3), data.data() + 30);
  EXPECT_THROW((void)view.WithRowStride(3), Error);
}

TEST(TensorViewTest, ColumnsAreASliceOfEveryRow) {
  std::vector<Bf16> data(2 * 3 * 10);
  const TensorView view = TensorView(data.data(), {2, 3, 10}).Columns(6, 4);
  EXPECT_EQ(view.ShapeString(), "[2, 3, 4]");
  EXPECT_EQ(view.Row<Bf16>(0), data.data() + 6);
  EXPECT_EQ(view.Row<Bf16>(1, 2), data.data() + 56);
  EXPECT_EQ(view.Columns(1, 2).Row<Bf16>(1), data.data() + 37);
  EXPECT_EQ(view.Columns(4, 0).ShapeString(), "[2, 3, 0]");
  EXPECT_THROW((void)view.Columns(1, 4), Error);
  EXPECT_THROW((void)view.Columns(-1, 2), Error);
  EXPECT_THROW((void)view.Columns(5, -1), Error);
  EXPECT_THROW((void)TensorView().Columns(0, 0), Error);
}

TEST(TensorViewTest, ShapeMismatchNamesBothShapes) {
  std::vector<float> data(6);
  try {
    RequireShape("q", ConstTensorView(data.data(), {2, 3}), {2, 4});
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "q: expected shape [2, 4], got [2, 3]");
  }
}

}  // namespace
}  // namespace quire
