#include "bench/cuda_sparse_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/plan_storage.h"
#include "bench/cuda_layers.h"
#include "bench/random_bf16.h"
#include "bench/sequences.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/cuda/select_keys/select_keys.h"
#include "testing/splitmix64.h"

namespace quire::bench {
namespace {

using namespace quire::cuda;  // NOLINT: all of it is about the device

constexpr int32_t kTopK = 2048;

struct SparseShape {
  int32_t num_heads;
  int64_t q_len;
  int32_t num_seqs;
  int64_t kv_len;
  KvFormat format;
  int32_t page_size = 64;
  Effort least_effort = Effort::kFull;
};

constexpr KvFormat kPlainKeys = KvFormat::kIndexKeyFp8;
constexpr KvFormat kPreshuffledKeys = KvFormat::kIndexKeyFp8Preshuffled;
constexpr SparseShape kSelectShapes[] = {
    {64, 1, 64, 8192, kPlainKeys, 64, Effort::kQuick},
    {64, 1, 64, 65536, kPlainKeys},
    {64, 1, 64, 131072, kPlainKeys, 64, Effort::kQuick},
    {64, 1, 1, 8192, kPlainKeys, 64, Effort::kQuick},
    {64, 1, 1, 131072, kPlainKeys, 64, Effort::kQuick},
    {64, 4096, 1, 8192, kPlainKeys, 64, Effort::kQuick},
    {32, 1, 64, 65536, kPlainKeys},
    {64, 1, 64, 8192, kPlainKeys, 1, Effort::kQuick},
    {64, 1, 64, 8192, kPreshuffledKeys, 64, Effort::kQuick},
    {64, 1, 64, 131072, kPreshuffledKeys, 64, Effort::kQuick},
};
constexpr SparseShape kChosenShapes[] = {
    {128, 1, 128, 8192, KvFormat::kLatentBf16, 64, Effort::kQuick},
    {128, 1, 128, 8192, KvFormat::kLatentFp8, 64, Effort::kQuick},
    {16, 1, 128, 8192, KvFormat::kLatentBf16, 64, Effort::kQuick},
    {16, 1, 128, 8192, KvFormat::kLatentFp8, 64, Effort::kQuick},
    {128, 4096, 1, 8192, KvFormat::kLatentBf16, 64, Effort::kQuick},
};

// Every layout of index keys, over sequences and keys; of 1024 keys all are chosen.
std::vector<SparseShape> LayoutShapes() {
  std::vector<SparseShape> shapes;
  for (const int32_t num_seqs : {1, 4, 16, 64}) {
    for (const int64_t kv_len : {1024, 8192, 65536, 131072}) {
      for (const int32_t page_size : {1, 16, 64}) {
        shapes.push_back({64, 1, num_seqs, kv_len, kPlainKeys, page_size});
        if (page_size > 1) shapes.push_back({64, 1, num_seqs, kv_len, kPreshuffledKeys, page_size});
      }
    }
  }
  return shapes;
}

Sequences SequencesOf(const SparseShape& shape) {
  return Sequences({.num_seqs = shape.num_seqs,
                    .q_len = TokenCount(shape.q_len),
                    .kv_len = TokenCount(shape.kv_len),
                    .page_size = PageSize(shape.page_size)});
}

std::string NameOf(const char* what, const SparseShape& shape) {
  const char* format = shape.format == kPreshuffledKeys       ? "_preshuffled"
                       : shape.format == KvFormat::kLatentFp8 ? "_fp8"
                                                              : "";
  return fmt::format("{}/{}h_top{}_q{}_b{}_s{}{}/p{}", what, shape.num_heads, kTopK, shape.q_len,
                     shape.num_seqs, shape.kv_len, format, shape.page_size);
}

// ---- Choosing ----

void RunSelect(const SparseShape& shape, benchmark::State& state) {
  const IndexShape index{.num_heads = shape.num_heads, .head_dim = 128, .top_k = kTopK};
  const Sequences seqs = SequencesOf(shape);
  const WorkShape work = SelectWorkShape(index, QueryDevice().num_sms);
  SerialExecutor executor;
  quire::PlanStorage plans(seqs.capacity(), work);
  const Plan& host_plan = plans.Make(seqs.steps(), executor);
  const cuda::PlanCopy plan(host_plan);
  const CudaLayers layers(KvLayout(shape.format, {128, 0}, PageSize(shape.page_size)),
                          seqs.capacity().pool_pages);
  const DeviceBuffer workspace("workspace", SelectKeysWorkspace(seqs.capacity(), work, index));
  DeviceArrays arrays;
  const int64_t tokens = host_plan.num_query_tokens.raw();
  const std::span<Bf16> q = arrays.Put(RandomBf16(tokens * shape.num_heads * 128));
  std::vector<float> drawn;
  for (const Bf16 value : RandomBf16(tokens * shape.num_heads)) drawn.push_back(ToFloat(value));
  const std::span<float> gates = arrays.Put(drawn);
  const std::span<int32_t> chosen = arrays.Take<int32_t>(static_cast<size_t>(tokens * kTopK));
  const Stream stream;
  const double seconds = SecondsOfLayers(state, stream, layers.size(), [&](int64_t layer) {
    const KvStore store = layers[layer];
    SelectKeys({.plan = plan.plan(),
                .store = store,
                .shape = index,
                .q = ConstTensorView(q.data(), {tokens, shape.num_heads, 128}),
                .gates = ConstTensorView(gates.data(), {tokens, shape.num_heads}),
                .scale = 0.01f,
                .chosen = chosen,
                .workspace = workspace.bytes()},
               SelectKernel::kTensorCore, stream);
  });
  double keys = 0;
  for (const QueryTile& tile : host_plan.tiles) keys += static_cast<double>(tile.kv_end.raw());
  state.counters["TB/s"] = keys * 132 / seconds / 1e12;
  state.counters["TFLOP/s"] = keys * shape.num_heads * 256 / seconds / 1e12;
}

// ---- Attending ----

// A choice of top_k keys for every query, spread evenly over all that it sees, from a drawn one on.
std::vector<int32_t> SpreadChoices(const Plan& plan) {
  std::vector<int32_t> chosen;
  for (const QueryTile& tile : plan.tiles) {
    const int64_t visible = plan.Visible(tile.seq, tile.q_begin).raw();
    const auto token = static_cast<uint64_t>(tile.q_begin.raw());
    for (int64_t i = 0; i < kTopK; ++i) {
      const int64_t begin = visible * i / kTopK, end = visible * (i + 1) / kTopK;
      const uint64_t drawn = testing::SplitMix64(token * kTopK + static_cast<uint64_t>(i));
      const int64_t span = std::max<int64_t>(1, end - begin);
      chosen.push_back(
          visible <= kTopK
              ? (i < visible ? static_cast<int32_t>(i) : -1)
              : static_cast<int32_t>(begin +
                                     static_cast<int64_t>(drawn % static_cast<uint64_t>(span))));
    }
  }
  return chosen;
}

void RunChosen(const SparseShape& shape, benchmark::State& state) {
  const MlaShape mla{.num_heads = shape.num_heads};
  const Sequences seqs = SequencesOf(shape);
  const WorkShape work = SparseWorkShape(mla, kTopK, QueryDevice().num_sms, false);
  SerialExecutor executor;
  quire::PlanStorage plans(seqs.capacity(), work);
  const Plan& host_plan = plans.Make(seqs.steps(), executor);
  const cuda::PlanCopy plan(host_plan);
  const CudaLayers layers(KvLayout(shape.format, mla.dims, PageSize(shape.page_size)),
                          seqs.capacity().pool_pages);
  const DeviceBuffer workspace("workspace", MlaAttentionWorkspace(seqs.capacity(), work, mla));
  DeviceArrays arrays;
  const int64_t tokens = host_plan.num_query_tokens.raw();
  const std::span<Bf16> q = arrays.Put(RandomBf16(tokens * shape.num_heads * mla.dims.values()));
  const std::span<Bf16> out =
      arrays.Take<Bf16>(static_cast<size_t>(tokens * shape.num_heads * mla.dims.latent_dim));
  const std::span<int32_t> chosen = arrays.Put(SpreadChoices(host_plan));
  const Stream stream;
  const double seconds = SecondsOfLayers(state, stream, layers.size(), [&](int64_t layer) {
    const KvStore store = layers[layer];
    SparseAttention({.plan = plan.plan(),
                     .store = store,
                     .q = {q.data(), {tokens, shape.num_heads, mla.dims.values()}},
                     .chosen = chosen,
                     .top_k = kTopK,
                     .out = {out.data(), {tokens, shape.num_heads, mla.dims.latent_dim}},
                     .scale = 0.1f,
                     .workspace = workspace.bytes()},
                    stream);
  });
  double keys = 0;
  for (const QueryTile& tile : host_plan.tiles) keys += static_cast<double>(tile.kv_end.raw());
  state.counters["TFLOP/s"] = keys * shape.num_heads * 2 * (576 + 512) / seconds / 1e12;
}

template <class Run>
void Register(const char* what, const SparseShape& shape, Effort effort, Run run) {
  if (effort < shape.least_effort) return;
  benchmark::RegisterBenchmark(NameOf(what, shape).c_str(),
                               [shape, run](benchmark::State& state) { run(shape, state); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(20);  // inputs are made once
}

}  // namespace

void RegisterCudaSparse(Effort effort) {
  for (const SparseShape& shape : kSelectShapes) Register("select", shape, effort, RunSelect);
  for (const SparseShape& shape : LayoutShapes()) {
    Register("select_layouts", shape, effort, RunSelect);
  }
  for (const SparseShape& shape : kChosenShapes) Register("chosen", shape, effort, RunChosen);
}

}  // namespace quire::bench
