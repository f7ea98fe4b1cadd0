#include "kernels/cuda/row_ops/pick_rows.h"

#include "base/error.h"
#include "kernels/cuda/row_ops/pick_rows_launch.h"

namespace quire::cuda {

void Validate(const PickRowsArgs& args) {
  Require(args.x.rank() == 2 && args.x.dtype() == DType::kF32,
          "pick rows: x: expected [tokens, width] f32, got {} {}", args.x.ShapeString(),
          DTypeName(args.x.dtype()));
  Require(args.y.dtype() == DType::kF32, "pick rows: y: expected f32, got {}",
          DTypeName(args.y.dtype()));
  RequireShape("pick rows: y", args.y, {std::ssize(args.rows), args.x.dim(1)});
}

void PickRows(const PickRowsArgs& args, const Stream& stream, StatusWord status) {
  Validate(args);
  if (args.rows.empty()) return;
  LaunchPickRows({.x = args.x.Address<float>(),
                  .x_stride = args.x.stride(0),
                  .num_tokens = args.x.dim(0),
                  .rows = args.rows.data(),
                  .num_rows = std::ssize(args.rows),
                  .y = args.y.Address<float>(),
                  .y_stride = args.y.stride(0),
                  .width = args.x.dim(1),
                  .status = status},
                 stream);
}

}  // namespace quire::cuda
