#include "bench/cuda_gemm_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/manual_time.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_boxed.h"
#include "kernels/cuda/gemm/gemm_planner.h"
#include "kernels/cuda/gemm/gemm_strips.h"
#include "kernels/cuda/gemm/gemv.h"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/moe/router.h"
#include "kernels/cuda/roof.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/row_ops_cases.h"
#include "testing/splitmix64.h"

namespace quire::bench {
namespace {

using namespace quire::cuda;  // NOLINT: all of it is about the device

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kRows[] = {1, 8, 16, 32, 64, 512, 4096};
constexpr int64_t kTokens[] = {1, 16, 32, 64, 128, 256, 512, 4096};  // of experts
constexpr int64_t kMaxRows = 4096;
// Weights visited in turn: many times the 50 MB of L2.
constexpr int64_t kBytesToVisit = kGiB;
constexpr int64_t kMaxLayers = 128;

enum class Kind { kCublasLt, kTiles, kGemv, kStrips, kBoxed, kFp8, kFp8KeepX };
const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kCublasLt:
      return "lt";
    case Kind::kTiles:
      return "tiles";
    case Kind::kGemv:
      return "gemv";
    case Kind::kStrips:
      return "strips";
    case Kind::kBoxed:
      return "boxed";
    case Kind::kFp8:
      return "fp8";
    case Kind::kFp8KeepX:
      return "fp8_keep_x";
  }
  return "?";
}
bool IsFp8(Kind kind) { return kind == Kind::kFp8 || kind == Kind::kFp8KeepX; }

struct DenseShape {
  const char* name;
  MatrixShape matrix;  // outputs, inputs
  int64_t count = 1;   // heads
  DType y = DType::kBf16;
  int64_t most_rows = kMaxRows;
  bool gated = false;  // two such matrices, and their activation: by strips and boxed alone
};

constexpr DenseShape kDenseShapes[] = {
    {"v2_lite/q_up", {3072, 2048}},
    {"v2_lite/kv_down", {576, 2048}},
    {"v2_lite/key_heads", {512, 128}, 16},
    {"v2_lite/value_heads", {128, 512}, 16},
    {"v2_lite/out", {2048, 2048}},
    {"v2_lite/shared_gate_up", {2816, 2048}, 1, DType::kBf16, kMaxBoxedRows, true},
    {"v2_lite/shared_down", {2048, 2816}},
    {"v2_lite/dense_up", {10944, 2048}},
    {"v2_lite/dense_down", {2048, 10944}},
    {"v2_lite/head", {102400, 2048}, 1, DType::kF32, 512},
    {"v3/q_down", {1536, 7168}},
    {"v3/q_up", {24576, 1536}},
    {"v3/kv_down", {576, 7168}},
    {"v3/key_heads", {512, 128}, 128},
    {"v3/value_heads", {128, 512}, 128},
    {"v3/out", {7168, 16384}},
    {"v3/dense_up", {18432, 7168}},
    {"v3/dense_down", {7168, 18432}},
    {"v3/head", {129280, 7168}, 1, DType::kF32, 512},
};

struct ExpertShape {
  const char* name;
  MatrixShape matrix;
  int64_t experts;
  int64_t top_k;
  bool gated;
};

constexpr ExpertShape kExpertShapes[] = {
    {"v2_lite/experts_gate_up", {1408, 2048}, 64, 6, true},
    {"v2_lite/experts_down", {2048, 1408}, 64, 6, false},
    {"v3/experts_gate_up", {2048, 7168}, 256, 8, true},
    {"v3/experts_down", {7168, 2048}, 256, 8, false},
};

struct RouterShape {
  const char* name;
  RouteShape route;
  int64_t inputs;
};

constexpr RouterShape kRouterShapes[] = {{"v2_lite", {.num_experts = 64, .top_k = 6}, 2048},
                                         {"v3", testing::kV3Route, 7168}};

// The device's memory, filled with numbers that are neither huge nor NaN as bf16 or as e4m3: the
// upper byte is 0x3f or 0xbf, and no lower one has all of its bits. Zeros would be faster.
class Pools {
 public:
  Pools() {
    std::vector<uint16_t> block(size_t{1} << 23);
    for (size_t i = 0; i < block.size(); ++i) {
      const uint64_t bits = testing::SplitMix64(i);
      block[i] = static_cast<uint16_t>(0x3f00 | (bits & 0x80f7));
    }
    const size_t bytes = 2 * block.size();
    CopyAndWait(weights.data(), block.data(), bytes, "block");
    for (const DeviceBuffer* pool : {&weights, &x, &y}) {
      const auto size = static_cast<size_t>(pool->size().raw());
      for (size_t at = pool == &weights ? bytes : 0; at < size; at += bytes) {
        CopyAndWait(pool->data() + at, weights.data(), std::min(bytes, size - at),
                    "filling a pool");
      }
    }
    const std::vector<float> ones(size_t{1} << 20, 0.01f);
    CopyAndWait(scales.data(), ones.data(), 4 * ones.size(), "scales");
  }

  // The weights of experts of V3: 256 x 2048 x 7168 of bf16, gate and up.
  DeviceBuffer weights{"weights", ByteOffset(16 * kGiB)};
  DeviceBuffer x{"x", ByteOffset(2 * kGiB)};
  DeviceBuffer y{"y", ByteOffset(2 * kGiB)};
  DeviceBuffer scales{"scales", ByteOffset(int64_t{4} << 20)};
  DeviceBuffer codes{"codes", ByteOffset(kGiB)};
  DeviceBuffer offsets{"offsets", ByteOffset(4 * (cuda::kMaxExperts + 1))};
  DeviceBuffer workspace{"workspace", GemmPlanner::kWorkspaceBytes};
};

// A product, launched for layer after layer.
struct Job {
  int64_t layers = 1;
  bool overlaps = false;        // layers begin while those before them end
  double bytes = 0, flops = 0;  // of one launch
  std::function<void(int64_t layer, const Stream& stream)> launch;
};

class GemmBench {
 public:
  GemmBench() : planner_(GemmBackend::kCublasLt, pools_.workspace.bytes()) {
    read_roof_ = MeasureReadRoof(4);
    const Job square = Dense({"", {8192, 8192}}, Kind::kCublasLt, 8192, 1);
    matrix_roof_ = square.flops / Seconds(Record(square), 20);
    fmt::print("roofs: read {:.2f} TB/s, cuBLASLt 8192^3 {:.0f} TFLOP/s\n", read_roof_ / 1e12,
               matrix_roof_ / 1e12);
  }

  Job Dense(const DenseShape& shape, Kind kind, int64_t rows, int64_t max_layers) {
    const auto [outputs, inputs] = shape.matrix;
    const WeightView w = Weights(shape.matrix, shape.count, kind, 0);
    GemmArgs args{.w = w, .x_step = inputs, .y_step = outputs};
    args.x = Rows(rows, inputs, shape.count * inputs);
    args.y = Output(rows, outputs, shape.count * outputs, shape.y);
    if (shape.gated) args.up = Weights(shape.matrix, 1, kind, 1);
    if (kind == Kind::kFp8) args.x_codes = Codes(args.x), args.x = {};
    if (kind == Kind::kCublasLt) planner_.Plan(ShapeOf(args));
    Job job;
    const int64_t matrices = w.count * (shape.gated ? 2 : 1);
    job.layers = std::clamp<int64_t>(
        kBytesToVisit / (WeightViewBytes(w).raw() * (shape.gated ? 2 : 1)), 1, max_layers);
    job.bytes = static_cast<double>(GemmBytes(args).raw());
    job.flops = GemmFlops(args);
    job.launch = [this, args, kind, matrices](int64_t layer, const Stream& stream) {
      GemmArgs at = args;
      const int64_t bytes = layer * matrices * args.w.matrix_stride * WeightBytes(args.w.format);
      at.w.data += bytes;
      if (!at.up.empty()) at.up.data += bytes;
      if (kind == Kind::kCublasLt) return planner_.GemmByCublasLt(at, stream);
      if (kind == Kind::kGemv) return Gemv(at, stream);
      if (kind == Kind::kStrips) return StripGemm(at, stream);
      if (kind == Kind::kBoxed) return BoxedGemm(at, stream);
      Gemm(at, stream);
    };
    return job;
  }

  // Rows choose their experts at random, without regard to the choices of others.
  Job Experts(const ExpertShape& shape, Kind kind, int64_t tokens) {
    const auto [outputs, inputs] = shape.matrix;
    const int64_t rows = tokens * shape.top_k;
    ExpertGemmArgs args{.w = Weights(shape.matrix, shape.experts, kind, 0)};
    if (shape.gated) args.up = Weights(shape.matrix, shape.experts, kind, 1);
    args.x = Rows(rows, inputs, inputs);
    args.y = Output(rows, outputs, outputs, DType::kBf16);
    if (kind == Kind::kFp8) args.x_codes = Codes(args.x), args.x = {};
    std::vector<int32_t> counts(static_cast<size_t>(shape.experts));
    for (int64_t t = 0; t < tokens; ++t) {
      const uint64_t first = testing::SplitMix64(static_cast<uint64_t>(t) + 1);
      for (int64_t i = 0; i < shape.top_k; ++i) {  // top_k different ones
        ++counts[(first + static_cast<uint64_t>(i) * 37) % static_cast<uint64_t>(shape.experts)];
      }
    }
    std::vector<int32_t> offsets(1, 0);
    int64_t chosen = 0;
    for (int32_t count : counts) {
      offsets.push_back(offsets.back() + count);
      chosen += count > 0 ? 1 : 0;
    }
    CopyAndWait(pools_.offsets.data(), offsets.data(), 4 * offsets.size(), "offsets");
    args.offsets = reinterpret_cast<const int32_t*>(pools_.offsets.data());
    args.exact = kind != Kind::kGemv;
    const int64_t arrays = shape.gated ? 2 : 1;
    const int64_t layer_bytes =
        arrays * shape.experts * outputs * inputs * WeightBytes(args.w.format);
    Job job;
    job.layers = std::clamp<int64_t>(pools_.weights.size().raw() / layer_bytes, 1, 4);
    job.bytes =
        static_cast<double>(arrays * chosen * WeightViewBytes(args.w).raw() / shape.experts) +
        static_cast<double>(rows * (inputs * (kind == Kind::kFp8 ? 1 : 2) + 2 * outputs));
    job.flops = 2.0 * static_cast<double>(arrays * rows * inputs) * static_cast<double>(outputs);
    job.launch = [args, layer_bytes](int64_t layer, const Stream& stream) {
      ExpertGemmArgs at = args;
      at.w.data += layer * layer_bytes;
      if (!at.up.empty()) at.up.data += layer * layer_bytes;
      ExpertGemm(at, stream);
    };
    return job;
  }

  // A norm, as a layer has it there, the router's product with it, choosing and sorting.
  Job Router(const RouterShape& shape, int64_t rows, RouterOrder order) {
    const int32_t experts = shape.route.num_experts;
    GemmArgs product{.w = Weights({experts, shape.inputs}, 1, Kind::kCublasLt, 0)};
    Carver carver = DeviceCarver(pools_.codes);
    const TensorView normed = carver.TakeTensor(DType::kBf16, {rows, shape.inputs});
    product.x = normed;
    product.y = carver.TakeTensor(DType::kF32, {rows, experts});
    const int64_t choices = rows * shape.route.top_k;
    const RouteArgs route{.shape = shape.route,
                          .logits = product.y,
                          .experts = carver.Take<int32_t>(choices),
                          .weights = carver.Take<float>(choices)};
    const SortByExpertArgs sort{.num_experts = experts,
                                .top_k = shape.route.top_k,
                                .experts = route.experts,
                                .offsets = carver.Take<int32_t>(experts + 1),
                                .row_of = carver.Take<int32_t>(choices),
                                .token_of = carver.Take<int32_t>(choices)};
    const RmsNormArgs norm{
        .x = ConstTensorView(reinterpret_cast<const float*>(pools_.x.data()), {rows, shape.inputs}),
        .weight = {reinterpret_cast<const float*>(pools_.scales.data()),
                   static_cast<size_t>(shape.inputs)},
        .y = normed};
    Job job;
    job.layers = kMaxLayers;
    job.bytes = static_cast<double>(GemmBytes(product).raw());
    job.flops = GemmFlops(product);
    const RouterArgs router{
        .x = product.x,
        .w = product.w,
        .route = route,
        .sort = sort,
        .logits = carver.Take<float>(RouterWorkspace(rows, experts, shape.inputs, order)),
        .arrived = carver.Take<int32_t>(kRouterCounts),
        .order = order};
    Check(cudaMemset(router.arrived.data(), 0, router.arrived.size_bytes()), "counts of arrivals");
    job.launch = [router, norm](int64_t layer, const Stream& stream) {
      RouterArgs at = router;
      at.w.data += layer * at.w.matrix_stride * WeightBytes(at.w.format);
      RmsNorm(norm, stream);
      RouteTokens(at, stream);
    };
    return job;
  }

  void Run(const Job& job, benchmark::State& state) {
    const Graph graph = Record(job);
    Seconds(graph, 2);
    const double seconds =
        MeanSeconds(state, [&] { return Seconds(graph, 1) / static_cast<double>(job.layers); });
    const auto rate = [&](double amount) { return amount / seconds; };
    state.counters["TB/s"] = rate(job.bytes / 1e12);
    state.counters["TFLOP/s"] = rate(job.flops / 1e12);
    state.counters["%read"] = rate(100 * job.bytes / read_roof_);
    state.counters["%matrix"] = rate(100 * job.flops / matrix_roof_);
  }

 private:
  ConstTensorView Rows(int64_t rows, int64_t width, int64_t stride) const {
    QUIRE_CHECK(2 * rows * stride <= pools_.x.size().raw());
    return ConstTensorView(reinterpret_cast<const Bf16*>(pools_.x.data()), {rows, width})
        .WithRowStride(stride);
  }
  TensorView Output(int64_t rows, int64_t width, int64_t stride, DType dtype) const {
    QUIRE_CHECK(DTypeBytes(dtype) * rows * stride <= pools_.y.size().raw());
    if (dtype == DType::kF32) {
      return TensorView(reinterpret_cast<float*>(pools_.y.data()), {rows, width})
          .WithRowStride(stride);
    }
    return TensorView(reinterpret_cast<Bf16*>(pools_.y.data()), {rows, width})
        .WithRowStride(stride);
  }

  // The `which`th array of so many matrices in the pool.
  WeightView Weights(MatrixShape shape, int64_t count, Kind kind, int64_t which) const {
    const int64_t elements = count * shape.outputs * shape.inputs;
    const std::byte* data = pools_.weights.data() + which * elements * (IsFp8(kind) ? 1 : 2);
    WeightView w =
        IsFp8(kind) ? Fp8Weights(reinterpret_cast<const Fp8E4m3*>(data),
                                 reinterpret_cast<const float*>(pools_.scales.data()), shape, count)
                    : DenseWeights(reinterpret_cast<const Bf16*>(data), shape, count);
    QUIRE_CHECK((which + 1) * elements * WeightBytes(w.format) <= pools_.weights.size().raw());
    return w;
  }

  QuantisedRows Codes(const ConstTensorView& x) {
    Carver carver = DeviceCarver(pools_.codes);
    const QuantisedRows codes = TakeQuantisedRows(carver, x.dim(0), x.dim(1));
    QuantiseRows({.x = x, .to = codes}, stream_);
    return codes;
  }

  Graph Record(const Job& job) {
    stream_.set_overlaps(job.overlaps);
    return Graph::Capture(stream_, [&] {
      for (int64_t layer = 0; layer < job.layers; ++layer) job.launch(layer, stream_);
    });
  }

  // Of one launch of the graph, the mean of `repeats`.
  double Seconds(const Graph& graph, int repeats) {
    begin_.Record(stream_);
    for (int i = 0; i < repeats; ++i) graph.Launch(stream_);
    end_.Record(stream_);
    return end_.SecondsSince(begin_) / repeats;
  }

  Pools pools_;
  Stream stream_;
  Event begin_{true}, end_{true};
  GemmPlanner planner_;
  double read_roof_ = 0, matrix_roof_ = 0;
};

// The device's memory is taken when the first product is to be measured.
using LazyBench = std::shared_ptr<std::unique_ptr<GemmBench>>;
using MakeJob = std::function<Job(GemmBench& bench)>;

void Register(const LazyBench& lazy, const std::string& name, const MakeJob& make) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [lazy, make](benchmark::State& state) {
                                 if (*lazy == nullptr) *lazy = std::make_unique<GemmBench>();
                                 (*lazy)->Run(make(**lazy), state);
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(20);  // of all layers, where the time is of one
}

// A product of the shape, for what is asked of shapes and addresses alone.
GemmArgs ShapeOnly(const DenseShape& shape, int64_t rows) {
  alignas(16) static Bf16 value[8] = {};
  const auto [outputs, inputs] = shape.matrix;
  GemmArgs args{.x = ConstTensorView(value, {rows, inputs}),
                .w = DenseWeights(value, shape.matrix, shape.count),
                .y = TensorView(value, {rows, outputs}),
                .x_step = inputs,
                .y_step = outputs};
  if (shape.gated) args.up = args.w;
  return args;
}

bool AreGemv(const ExpertShape& shape, int64_t tokens) {
  alignas(16) static Bf16 value[8] = {};
  static const int32_t offset = 0;
  const int64_t rows = tokens * shape.top_k;
  return ChooseExpertKernel({.x = ConstTensorView(value, {rows, shape.matrix.inputs}),
                             .w = DenseWeights(value, shape.matrix, shape.experts),
                             .offsets = &offset,
                             .y = TensorView(value, {rows, shape.matrix.outputs})}) ==
         ExpertKernel::kGemv;
}

}  // namespace

void RegisterCudaGemm(Effort effort) {
  const auto lazy = std::make_shared<std::unique_ptr<GemmBench>>();
  const auto name = [](const char* shape, Kind kind, int64_t rows) {
    return fmt::format("gemm/{}/{}/r{}", shape, KindName(kind), rows);
  };
  // Layers that overlap, as in steps of few tokens, have a name of their own.
  const auto register_dense = [&](const DenseShape& shape, Kind kind, int64_t rows, bool overlaps) {
    const std::string kind_name = fmt::format("{}{}", KindName(kind), overlaps ? "_ahead" : "");
    Register(lazy, fmt::format("gemm/{}/{}/r{}", shape.name, kind_name, rows),
             [shape, kind, rows, overlaps](GemmBench& bench) {
               Job job = bench.Dense(shape, kind, rows, kMaxLayers);
               job.overlaps = overlaps;
               return job;
             });
  };
  const auto is_left_out = [&](int64_t rows) {
    return effort == Effort::kQuick && rows != 1 && rows != 64 && rows != 4096;
  };
  for (int64_t rows : kRows) {
    if (is_left_out(rows)) continue;
    for (const DenseShape& shape : kDenseShapes) {
      const auto register_both = [&](Kind kind) {
        register_dense(shape, kind, rows, false);
        register_dense(shape, kind, rows, true);
      };
      const bool is_boxed =
          rows <= kMaxBoxedRows && shape.matrix.outputs * shape.count <= 64 * kMaxBoxedTiles;
      if (is_boxed) register_both(Kind::kBoxed);
      if (GemvTakes(ShapeOnly(shape, rows))) register_both(Kind::kGemv);
      if (StripsTake(ShapeOnly(shape, rows))) register_both(Kind::kStrips);
      if (shape.gated) continue;
      if (rows <= kMaxBoxedRows) register_dense(shape, Kind::kTiles, rows, true);
      for (Kind kind : {Kind::kCublasLt, Kind::kTiles, Kind::kFp8, Kind::kFp8KeepX}) {
        // x of heads is not quantised, and few rows want logits.
        if ((kind == Kind::kFp8 && shape.count > 1) || rows > shape.most_rows) continue;
        register_dense(shape, kind, rows, false);
      }
    }
  }
  for (int64_t tokens : kTokens) {
    if (is_left_out(tokens)) continue;
    for (const ExpertShape& shape : kExpertShapes) {
      for (Kind kind : {Kind::kTiles, Kind::kGemv, Kind::kFp8, Kind::kFp8KeepX}) {
        if (kind == Kind::kGemv && !AreGemv(shape, tokens)) continue;
        Register(lazy, name(shape.name, kind, tokens), [shape, kind, tokens](GemmBench& bench) {
          return bench.Experts(shape, kind, tokens);
        });
      }
    }
  }
  for (const RouterShape& shape : kRouterShapes) {
    for (int64_t rows : {1, 16, 64, 256}) {
      for (RouterOrder order : kRouterOrders) {
        const char* exact = order == RouterOrder::kTiles ? "_exact" : "";
        Register(
            lazy, fmt::format("router{}/{}/r{}", exact, shape.name, rows),
            [shape, rows, order](GemmBench& bench) { return bench.Router(shape, rows, order); });
      }
    }
  }
}

}  // namespace quire::bench
