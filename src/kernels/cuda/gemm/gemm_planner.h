// Products through cuBLASLt, with algorithms that were fixed before.
//
// cuBLASLt chooses an algorithm by heuristics. A step that asked for them would spend its time on the
// host, and a recorded graph could hold another algorithm than an eager step. So a GemmPlanner asks
// once per shape, when the runner is made, and a product whose shape was not planned is a fault of
// ours. The number of rows is part of a shape: steps are padded to buckets, eager ones too.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_PLANNER_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_PLANNER_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/units.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"

namespace quire::cuda {

enum class GemmBackend {
  kCublasLt,  // where it takes the product; kernels of our own for up to 64 rows, and for what it does not take
  // Kernels of our own that sum in the tile kernel's order: a row's bits do not depend on the number of rows.
  kExact,
};

// All that the choice of an algorithm depends on.
struct GemmShape {
  int64_t rows = 0;
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t count = 1;
  int64_t x_stride = 0, w_stride = 0, y_stride = 0;  // from row to row, in elements
  int64_t x_step = 0, w_step = 0, y_step = 0;        // from product to product; 0 if count is 1
  DType y = DType::kBf16;

  auto operator<=>(const GemmShape&) const = default;
};

GemmShape ShapeOf(const GemmArgs& args);

// Which of the products that may run at once a product is one of: those of a step's own stream, or
// those of the branch off it.
enum class GemmLane { kMain, kSide };

// What computes a product.
enum class GemmKernel {
  kGemv,    // where GemvTakes the product; never with kExact
  kStrips,  // with kExact, where StripsTake it
  kBoxed,  // otherwise, where BoxedTakes it, of more rows than a decode tile has; of gate and up, whatever the rows
  kCublasLt,  // otherwise, of more rows than a decode tile has, with bf16 weights, no bias, and every row of x, w and y
  // on a multiple of 16 bytes; the tile kernel, if cuBLASLt turns out to have no algorithm for the shape
  kTiles,  // all others
};
// Looks at shapes, types and addresses alone, never at memory.
GemmKernel ChooseGemm(GemmBackend backend, const GemmArgs& args);
// Whether gate and up, args.up, are one product. One row or two are Gemv's, which has no activation; with kExact the
// matrices alone decide, as nothing is rounded between the product and its activation then.
bool TakesGate(GemmBackend backend, const GemmArgs& args);

// Throws Error where this machine has no cuBLASLt and the backend needs it.
void RequireBackend(GemmBackend backend);

class GemmPlanner {
 public:
  // What NVIDIA recommends for Hopper.
  static constexpr ByteOffset kWorkspaceBytes{int64_t{32} << 20};

  // Workspaces are device memory, a multiple of 256 bytes in address, that outlives the planner. All
  // products of a lane share its workspace, so they run one after the other; kSide has none unless
  // one is given, as large as kMain's. With kExact both may be empty. Throws DeviceError, and Error as
  // RequireBackend does.
  GemmPlanner(GemmBackend backend, std::span<std::byte> workspace,
              std::span<std::byte> side_workspace = {});
  ~GemmPlanner();
  GemmPlanner(GemmPlanner&&) noexcept;
  GemmPlanner& operator=(GemmPlanner&&) noexcept;

  // Fixes the algorithm of products of this shape; planning a shape again changes nothing. If
  // cuBLASLt has none for it, that is fixed too, and the tile kernel computes it.
  void Plan(const GemmShape& shape);
  int64_t num_plans() const;
  // Whether a row of y has the same bits beside any others.
  bool is_exact() const { return backend_ == GemmBackend::kExact; }
  GemmKernel Choose(const GemmArgs& args) const { return ChooseGemm(backend_, args); }
  // Whether gate and up are one product with their activation, args.up.
  bool TakesGate(const GemmArgs& args) const { return quire::cuda::TakesGate(backend_, args); }

  // Launches the product. Throws InternalError if cuBLASLt takes it and its shape was not planned, or
  // its lane has no workspace. The lane changes no bit. Run a product once before recording it: CUDA
  // loads a kernel when it is first launched, and a capture is no place for that.
  void Gemm(const GemmArgs& args, const Stream& stream, GemmLane lane = GemmLane::kMain) const;
  // The same by the algorithm that was planned, whatever Choose says, for benchmarks.
  void GemmByCublasLt(const GemmArgs& args, const Stream& stream,
                      GemmLane lane = GemmLane::kMain) const;

 private:
  class Library;  // the handle
  struct Algorithm;

  const Algorithm& Planned(const GemmShape& shape) const;

  GemmBackend backend_;
  std::span<std::byte> workspace_;
  std::span<std::byte> side_workspace_;
  std::unique_ptr<Library> library_;  // with kCublasLt
  std::map<GemmShape, std::unique_ptr<Algorithm>> algorithms_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_PLANNER_H_
