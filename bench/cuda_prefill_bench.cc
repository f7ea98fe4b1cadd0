#include "bench/cuda_prefill_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/expansion.h"
#include "attn/kv_store.h"
#include "attn/plan_storage.h"
#include "bench/manual_time.h"
#include "bench/random_bf16.h"
#include "bench/sequences.h"
#include "kernels/cuda/mha_prefill/mha_prefill.h"
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"

namespace quire::bench {
namespace {

using namespace quire::cuda;  // NOLINT: all of it is about the device

struct PrefillShape {
  int32_t num_heads, nope_dim, value_dim;
  int64_t q_len;
  int32_t num_seqs;
  int64_t kv_len;
};
constexpr PrefillShape kPrefillShapes[] = {
    {16, 128, 128, 8192, 1, 8192},  {16, 128, 128, 1024, 8, 1024}, {16, 128, 128, 8192, 1, 32768},
    {128, 128, 128, 1024, 8, 1024}, {20, 192, 256, 8192, 1, 8192}, {20, 192, 256, 1024, 8, 1024},
};

class PrefillStep {
 public:
  explicit PrefillStep(const PrefillShape& shape)
      : shape_{.num_heads = shape.num_heads,
               .nope_dim = shape.nope_dim,
               .value_dim = shape.value_dim},
        seqs_({.num_seqs = shape.num_seqs,
               .q_len = TokenCount(shape.q_len),
               .kv_len = TokenCount(shape.kv_len),
               .page_size = PageSize(64)}),
        plans_(seqs_.capacity(), {.query_tile = TokenCount(1)}),
        plan_(plans_.Make(seqs_.steps(), executor_)),
        layout_(KvFormat::kLatentBf16, shape_.dims, PageSize(64)),
        kv_("KV", KvStoreBytes(layout_, seqs_.capacity().pool_pages)),
        num_tokens_(shape.q_len * shape.num_seqs),
        rows_(ExpandedRows(TokenCount(shape.kv_len)) * shape.num_seqs) {
    Carver counter;
    LayOutExpandedKeys(shape_, rows_, counter);
    memory_.emplace("expanded keys", counter.used());
    Carver carver(memory_->bytes(), MemorySide::kDevice);
    keys_ = LayOutExpandedKeys(shape_, rows_, carver);
    Cut();
    const std::vector<Bf16> rows = RandomBf16(kv_.size().raw() / 2);
    Check(cudaMemcpy(kv_.data(), rows.data(), rows.size() * 2, cudaMemcpyHostToDevice), "rows");
    store_.emplace(kv_.bytes(), seqs_.capacity().pool_pages, layout_);
    const int64_t head_dim = shape_.nope_dim + shape_.dims.rope_dim;
    q_ = arrays_.Put(RandomBf16(num_tokens_ * shape_.num_heads * head_dim));
    out_ =
        arrays_.Take<Bf16>(static_cast<size_t>(num_tokens_ * shape_.num_heads * shape_.value_dim));
    key_up_ = Up(shape_.nope_dim);
    value_up_ = Up(shape_.value_dim);
  }

  const Stream& stream() const { return stream_; }

  void RunOp() { AttendExpanded(Args(), keys_, stream_); }
  void RunAttend() { LaunchMhaAttend(Args(), keys_, stream_); }
  // What gathering does before attending.
  void Rewind() {
    Check(cudaMemsetAsync(keys_.next_item.data(), 0, sizeof(int32_t), stream_.get()), "items");
  }

  double Flops() const {
    const auto queries = static_cast<double>(seqs_.steps()[0].q_len.raw());
    const auto keys = static_cast<double>(seqs_.steps()[0].kv_len.raw());
    const double pairs = queries * (keys - queries) + queries * (queries + 1) / 2;
    return 2 * pairs * static_cast<double>(seqs_.steps().size()) * shape_.num_heads *
           (shape_.nope_dim + shape_.dims.rope_dim + shape_.value_dim);
  }

 private:
  AttendExpandedArgs Args() const {
    const int64_t heads = shape_.num_heads;
    return {.plan = plan_.plan(),
            .expansion = expansion_,
            .store = *store_,
            .shape = shape_,
            .q = {q_.data(), {num_tokens_, heads, shape_.nope_dim + shape_.dims.rope_dim}},
            .key_up = key_up_,
            .value_up = value_up_,
            .out = {out_.data(), {num_tokens_, heads, shape_.value_dim}},
            .scale = 0.07f};
  }

  void Cut() {
    std::vector<SequenceStep> steps(seqs_.steps().begin(), seqs_.steps().end());
    for (SequenceStep& step : steps) step.expanded = true;
    const auto num_seqs = static_cast<int32_t>(steps.size());
    std::vector<ExpansionCounts> counts(1);
    std::vector<ExpandedTile> tiles(
        static_cast<size_t>(CeilDiv(TokenCount(num_tokens_), kExpandedBlock) + num_seqs));
    std::vector<ExpandedBlock> blocks(static_cast<size_t>(CeilDiv(rows_, kExpandedBlock)));
    CutExpansion(steps, {.counts = counts, .tiles = tiles, .blocks = blocks});
    expansion_ = {
        .counts = arrays_.Put(counts), .tiles = arrays_.Put(tiles), .blocks = arrays_.Put(blocks)};
  }

  Weight Up(int64_t dim) {
    const int64_t latent = shape_.dims.latent_dim, heads = shape_.num_heads;
    const auto values = arrays_.Put(RandomBf16(heads * dim * latent, 0.05f));
    return {.shape = {.outputs = dim, .inputs = latent},
            .count = heads,
            .format = WeightFormat::kBf16,
            .data = reinterpret_cast<const std::byte*>(values.data()),
            .step_bytes = dim * latent * 2};
  }

  SerialExecutor executor_;
  MhaShape shape_;
  Sequences seqs_;
  quire::PlanStorage plans_;
  PlanCopy plan_;
  KvLayout layout_;
  DeviceBuffer kv_;
  int64_t num_tokens_;
  TokenCount rows_;
  std::optional<DeviceBuffer> memory_;
  ExpandedKeys keys_;
  std::optional<KvStore> store_;
  Stream stream_;
  DeviceArrays arrays_;
  Expansion expansion_;
  std::span<Bf16> q_, out_;
  Weight key_up_, value_up_;
};

// By events, behind a run that warms up.
void RunPrefill(const PrefillShape& shape, bool whole, benchmark::State& state) {
  PrefillStep step(shape);
  step.RunOp();
  const double seconds = MeanSeconds(state, [&] {
    Event begin(true), end(true);
    step.Rewind();
    begin.Record(step.stream());
    whole ? step.RunOp() : step.RunAttend();
    end.Record(step.stream());
    return end.SecondsSince(begin);
  });
  state.counters["TFLOP/s"] = step.Flops() / 1e12 / seconds;
}

}  // namespace

void RegisterCudaPrefill(Effort effort) {
  for (const PrefillShape& shape : kPrefillShapes) {
    if (effort < Effort::kFull && shape.num_seqs > 1) continue;
    for (const bool whole : {false, true}) {
      const std::string name = fmt::format("prefill/{}h_{}_{}_q{}_b{}_s{}/{}", shape.num_heads,
                                           shape.nope_dim + 64, shape.value_dim, shape.q_len,
                                           shape.num_seqs, shape.kv_len, whole ? "op" : "attend");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [shape, whole](benchmark::State& state) { RunPrefill(shape, whole, state); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(20);
    }
  }
}

}  // namespace quire::bench
