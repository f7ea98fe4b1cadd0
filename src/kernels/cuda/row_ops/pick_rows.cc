#include "kernels/cuda/row_ops/pick_rows.h"

#include "base/error.h"
#include "kernels/cuda/row_ops/pick_rows_launch.h"

namespace quire::cuda {

void Validate(const PickRowsArgs& args) {
  const DType type = args.x.dtype();
  Require(args.x.rank() == 2 && (type == DType::kF32 || type == DType::kBf16),
          "pick rows: x: expected [tokens, width] f32 or bf16, got {} {}", args.x.ShapeString(),
          DTypeName(type));
  Require(args.y.dtype() == type, "pick rows: y: expected {}, got {}", DTypeName(type),
          DTypeName(args.y.dtype()));
  RequireShape("pick rows: y", args.y, {std::ssize(args.rows), args.x.dim(1)});
}

void PickRows(const PickRowsArgs& args, const Stream& stream, StatusWord status) {
  Validate(args);
  if (args.rows.empty()) return;
  LaunchPickRows({.x = args.x.data(),
                  .x_stride = args.x.stride(0),
                  .num_tokens = args.x.dim(0),
                  .rows = args.rows.data(),
                  .num_rows = std::ssize(args.rows),
                  .y = args.y.data(),
                  .y_stride = args.y.stride(0),
                  .width = args.x.dim(1),
                  .element_bytes = DTypeBytes(args.x.dtype()),
                  .status = status},
                 stream);
}

}  // namespace quire::cuda
