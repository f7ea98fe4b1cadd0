#include "kernels/cuda/gemm/gemm_planner.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/gemm/cublas_lt.h"
#include "kernels/cuda/gemm/gemm_boxed.h"
#include "kernels/cuda/gemm/gemm_strips.h"
#include "kernels/cuda/gemm/gemm_tile.h"
#include "kernels/cuda/gemm/gemv.h"

namespace quire::cuda {
namespace {

void CheckCublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Check(cudaGetLastError(), what);  // where CUDA itself has failed, its own words are better
  throw DeviceError(DeviceError::Lasts::kOnce, fmt::format("{}: cuBLASLt says {} ({})", what,
                                                           CublasLt::Get().status_name(status),
                                                           CublasLt::Get().status_text(status)));
}

// cuBLASLt's objects, destroyed with ours.
template <class Handle, cublasStatus_t (*CublasLt::*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) (CublasLt::Get().*kDestroy)(handle_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Product = Owned<cublasLtMatmulDesc_t, &CublasLt::destroy_product>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::destroy_layout>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::destroy_preference>;

// `count` matrices with `rows` contiguous elements in each of `columns` columns: row-major matrices
// are cuBLAS's column-major ones with the names of their sides exchanged.
void MakeLayout(Layout& layout, cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride,
                int64_t count, int64_t step) {
  CheckCublas(CublasLt::Get().create_layout(layout.out(), type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), stride),
              "gemm: layout of a matrix");
  const auto batches = static_cast<int32_t>(count);
  CheckCublas(CublasLt::Get().set_layout(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                         sizeof(batches)),
              "gemm: number of products");
  CheckCublas(CublasLt::Get().set_layout(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &step, sizeof(step)),
              "gemm: distance of products");
}

template <class T>
void Prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  CheckCublas(CublasLt::Get().set_preference(preference.get(), name, &value, sizeof(value)),
              "gemm: preference");
}

void RequireAligned(const char* name, std::span<std::byte> workspace) {
  const uintptr_t past = reinterpret_cast<uintptr_t>(workspace.data()) % 256;
  Require(past == 0, "{}: expected an address aligned to 256, got {} past one", name, past);
}

bool On16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

class GemmPlanner::Library {
 public:
  Library() { CheckCublas(CublasLt::Get().create(handle_.out()), "gemm: starting cuBLASLt"); }
  cublasLtHandle_t get() const { return handle_.get(); }

 private:
  Owned<cublasLtHandle_t, &CublasLt::destroy> handle_;
};

// y^T [outputs, rows] = w [outputs, inputs] x^T: in column-major terms op(A) = transposed w.
struct GemmPlanner::Algorithm {
  Product product;
  Layout w, x, y;
  std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: the tile kernel

  explicit Algorithm(const GemmShape& s) {
    CheckCublas(CublasLt::Get().create_product(product.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                "gemm: description of a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CheckCublas(CublasLt::Get().set_product(product.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof(transposed)),
                "gemm: transposition");
    const cudaDataType_t y_type = s.y == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
    MakeLayout(w, CUDA_R_16BF, s.inputs, s.outputs, s.w_stride, s.count, s.w_step);
    MakeLayout(x, CUDA_R_16BF, s.inputs, s.rows, s.x_stride, s.count, s.x_step);
    MakeLayout(y, y_type, s.outputs, s.rows, s.y_stride, s.count, s.y_step);
  }
};

GemmShape ShapeOf(const GemmArgs& args) {
  const bool several = args.w.count > 1;
  return {.rows = args.y.dim(0),
          .outputs = args.w.shape.outputs,
          .inputs = args.w.shape.inputs,
          .count = args.w.count,
          .x_stride = args.x.stride(0),
          .w_stride = args.w.row_stride,
          .y_stride = args.y.stride(0),
          .x_step = several ? args.x_step : 0,
          .w_step = several ? args.w.matrix_stride : 0,
          .y_step = several ? args.y_step : 0,
          .y = args.y.dtype()};
}

GemmKernel ChooseGemm(GemmBackend backend, const GemmArgs& args) {
  // Up to 16 rows without an activation are decode tiles.
  const bool may_be_boxed = !args.up.empty() || args.y.dim(0) > ExtentOf(TileSize::kDecode).rows;
  const bool is_boxed = may_be_boxed && BoxedTakes(args);
  if (backend == GemmBackend::kExact) {
    if (StripsTake(args)) return GemmKernel::kStrips;
    return is_boxed ? GemmKernel::kBoxed : GemmKernel::kTiles;
  }
  if (GemvTakes(args)) return GemmKernel::kGemv;
  if (is_boxed) return GemmKernel::kBoxed;
  if (args.w.format != WeightFormat::kBf16 || args.bias != nullptr) return GemmKernel::kTiles;
  const GemmShape s = ShapeOf(args);
  if (s.rows <= ExtentOf(TileSize::kDecode).rows) return GemmKernel::kTiles;
  const int64_t y_align = 16 / DTypeBytes(s.y);
  const bool is_aligned = s.inputs % 8 == 0 && s.x_stride % 8 == 0 && s.w_stride % 8 == 0 &&
                          s.x_step % 8 == 0 && s.w_step % 8 == 0 && s.y_stride % y_align == 0 &&
                          s.y_step % y_align == 0 && On16(FirstByte(args.x)) && On16(args.w.data) &&
                          On16(FirstByte(args.y));
  return is_aligned ? GemmKernel::kCublasLt : GemmKernel::kTiles;
}

bool TakesGate(GemmBackend backend, const GemmArgs& args) {
  if (backend == GemmBackend::kExact) return GemmTakesGate(args);
  return args.y.dim(0) > kFewGemvRows && BoxedTakes(args);
}

void RequireBackend(GemmBackend backend) {
  if (backend == GemmBackend::kCublasLt) CublasLt::Get();
}

GemmPlanner::GemmPlanner(GemmBackend backend, std::span<std::byte> workspace,
                         std::span<std::byte> side_workspace)
    : backend_(backend), workspace_(workspace), side_workspace_(side_workspace) {
  if (backend == GemmBackend::kExact) return;
  RequireAligned("gemm workspace", workspace);
  RequireAligned("gemm side workspace", side_workspace);
  Require(side_workspace.empty() || side_workspace.size() == workspace.size(),
          "gemm side workspace: expected {} bytes or none, got {}", workspace.size(),
          side_workspace.size());
  library_ = std::make_unique<Library>();
}
GemmPlanner::~GemmPlanner() = default;
GemmPlanner::GemmPlanner(GemmPlanner&&) noexcept = default;
GemmPlanner& GemmPlanner::operator=(GemmPlanner&&) noexcept = default;

int64_t GemmPlanner::num_plans() const { return std::ssize(algorithms_); }

void GemmPlanner::Plan(const GemmShape& shape) {
  if (backend_ == GemmBackend::kExact || algorithms_.contains(shape)) return;
  auto plan = std::make_unique<Algorithm>(shape);
  Preference preference;
  CheckCublas(CublasLt::Get().create_preference(preference.out()), "gemm: preference");
  Prefer<size_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.size());
  // Sums of splits stay f32; the other schemes round them to y's type in between.
  Prefer<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  // All that ChooseGemm promises; without it, an algorithm could rely on 256.
  for (const auto side :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    Prefer<uint32_t>(preference, side, 16);
  }
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status =
      CublasLt::Get().choose(library_->get(), plan->product.get(), plan->w.get(), plan->x.get(),
                             plan->y.get(), plan->y.get(), preference.get(), 1, &result, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) CheckCublas(status, "gemm: choice of an algorithm");
  if (found == 1 && result.state == CUBLAS_STATUS_SUCCESS) plan->algorithm = result.algo;
  algorithms_.emplace(shape, std::move(plan));
}

const GemmPlanner::Algorithm& GemmPlanner::Planned(const GemmShape& s) const {
  const auto at = algorithms_.find(s);
  QUIRE_CHECK(at != algorithms_.end(),
              "a product of {} rows, {} outputs, {} inputs, {} times, with strides {}, {}, {} and "
              "steps {}, {}, {} was not planned",
              s.rows, s.outputs, s.inputs, s.count, s.x_stride, s.w_stride, s.y_stride, s.x_step,
              s.w_step, s.y_step);
  return *at->second;
}

void GemmPlanner::Gemm(const GemmArgs& args, const Stream& stream, GemmLane lane) const {
  Validate(args);
  if (args.y.dim(0) == 0) return;
  const GemmKernel kernel = Choose(args);
  if (kernel == GemmKernel::kGemv) return Gemv(args, stream);
  if (kernel == GemmKernel::kStrips) return StripGemm(args, stream);
  if (kernel == GemmKernel::kBoxed) {
    return BoxedGemm(args, stream, is_exact() ? std::optional(GemmRanges(args)) : std::nullopt);
  }
  if (kernel == GemmKernel::kTiles) return cuda::Gemm(args, stream);
  GemmByCublasLt(args, stream, lane);
}

void GemmPlanner::GemmByCublasLt(const GemmArgs& args, const Stream& stream, GemmLane lane) const {
  QUIRE_CHECK(args.up.empty(), "gate and up by cuBLASLt");
  const Algorithm& plan = Planned(ShapeOf(args));
  if (!plan.algorithm) return cuda::Gemm(args, stream);
  const std::span<std::byte> workspace = lane == GemmLane::kMain ? workspace_ : side_workspace_;
  QUIRE_CHECK(workspace.size() == workspace_.size(), "a product beside others has no workspace");
  const float one = 1, zero = 0;
  auto* const y = const_cast<std::byte*>(FirstByte(args.y));
  CheckCublas(CublasLt::Get().multiply(library_->get(), plan.product.get(), &one, args.w.data,
                                       plan.w.get(), FirstByte(args.x), plan.x.get(), &zero, y,
                                       plan.y.get(), y, plan.y.get(), &*plan.algorithm,
                                       workspace.data(), workspace.size(), stream.get()),
              "gemm: launch of cuBLASLt");
}

}  // namespace quire::cuda
