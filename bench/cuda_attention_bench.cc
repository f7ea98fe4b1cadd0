#include "bench/cuda_attention_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attn/plan_storage.h"
#include "bench/cuda_layers.h"
#include "bench/random_bf16.h"
#include "bench/sequences.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/cuda/roof.h"

namespace quire::bench {
namespace {

using namespace quire::cuda;  // NOLINT: all of it is about the device

// Four sequences with four tokens to verify, of lengths that others have published times for.
enum class Drafts { kNone, kChains, kTrees };
constexpr int64_t kDraftedLengths[] = {4641, 45118, 1730, 1696};
constexpr int32_t kDraftedParents[] = {kTreeRoot, 0, 0, 1};

struct AttentionShape {
  int32_t num_heads;
  int64_t q_len;
  int32_t num_seqs;
  int64_t kv_len;
  KvFormat format = KvFormat::kLatentBf16;
  int32_t page_size = 64;
  Effort least_effort = Effort::kFull;
  bool exact = false;     // as with --deterministic
  bool is_mixed = false;  // lengths up to kv_len
  Drafts drafts = Drafts::kNone;
  bool overlaps = false;  // layers begin while those before them end, as in steps of few tokens
};

constexpr KvFormat kBf16Rows = KvFormat::kLatentBf16, kFp8Rows = KvFormat::kLatentFp8;
constexpr AttentionShape kAttentionShapes[] = {
    {128, 1, 128, 4096, kBf16Rows, 64, Effort::kQuick},
    {128, 1, 128, 2048, kBf16Rows, 64, Effort::kQuick},
    {128, 1, 128, 8192},
    {128, 1, 128, 32768},
    {128, 2, 128, 4096, kBf16Rows, 64, Effort::kQuick},
    {128, 2, 128, 32768},
    {128, 1, 1, 8192},
    {128, 1, 1, 131072, kBf16Rows, 64, Effort::kQuick},
    {16, 1, 128, 4096, kBf16Rows, 64, Effort::kQuick},
    {16, 1, 128, 4096, kBf16Rows, 1, Effort::kQuick},
    {16, 1, 128, 4096, kBf16Rows, 16},
    {16, 1, 128, 32768},
    {16, 1, 64, 8192},
    {16, 1, 1, 8192, kBf16Rows, 64, Effort::kQuick},
    {16, 1, 1, 131072, kBf16Rows, 64, Effort::kQuick},
    {16, 1, 256, 1024},
    {16, 4, 128, 4096, kBf16Rows, 64, Effort::kQuick},
    {16, 512, 1, 4096},
    {16, 1024, 8, 1024},
    {16, 1, 128, 4096, kFp8Rows, 64, Effort::kQuick},
    {16, 1, 128, 4096, kFp8Rows, 1},
    {16, 1, 128, 4096, kFp8Rows, 16},
    {16, 1, 128, 4096, kFp8Rows, 61},
    {16, 1, 256, 1024, kFp8Rows},
    {16, 1, 1, 8192, kFp8Rows},
    {16, 1, 128, 4096, kFp8Rows, 64, Effort::kFull, true},
    {16, 1, 128, 4096, kBf16Rows, 64, Effort::kQuick, true},
    {128, 1, 128, 4096, kBf16Rows, 64, Effort::kQuick, true},
    {16, 1, 1, 1024, kBf16Rows, 64, Effort::kQuick, true},
    {16, 1, 1, 131072, kBf16Rows, 64, Effort::kQuick, true},
    {16, 1, 1, 8192, kBf16Rows, 64, Effort::kFull, true},
    {16, 1, 8, 1024, kBf16Rows, 64, Effort::kFull, true},
    {20, 1, 1, 1024, kBf16Rows, 64, Effort::kFull, true},
    {20, 1, 1, 8192, kBf16Rows, 64, Effort::kFull, true},
    {20, 1, 1, 131072, kBf16Rows, 64, Effort::kFull, true},
    {16, 1, 8, 8192, kBf16Rows, 64, Effort::kFull, true},
    {16, 1, 64, 1024, kBf16Rows, 64, Effort::kFull, true},
    {128, 1, 1, 8192, kBf16Rows, 64, Effort::kFull, true},
    {128, 1, 1, 131072, kBf16Rows, 64, Effort::kFull, true},
    {16, 512, 1, 4096, kBf16Rows, 64, Effort::kFull, true},
    {16, 1024, 8, 1024, kBf16Rows, 64, Effort::kFull, true},
    {20, 1024, 8, 1024, kBf16Rows, 64, Effort::kFull, true},
    {128, 1024, 2, 1024, kBf16Rows, 64, Effort::kFull, true},
    {16, 1, 1, 1024, kBf16Rows, 64, Effort::kQuick},
    {16, 1, 128, 4096, kBf16Rows, 61},
    {20, 1, 128, 4096, kBf16Rows, 64, Effort::kQuick},
    {64, 1, 128, 4096},
    {128, 1, 128, 4096, kBf16Rows, 1, Effort::kQuick},
    {128, 1, 128, 4096, kBf16Rows, 16},
    {128, 1, 128, 4096, kBf16Rows, 61},
    {128, 1, 128, 4096, kFp8Rows, 64, Effort::kQuick},
    {128, 1, 128, 4096, kFp8Rows, 1},
    {128, 1, 128, 4096, kFp8Rows, 61},
    {128, 2, 128, 4096, kFp8Rows},
    {128, 1, 128, 32768, kFp8Rows},
    {128, 1, 1, 8192, kFp8Rows},
    {128, 1, 128, 4096, kFp8Rows, 64, Effort::kFull, true},
    {64, 1, 128, 4096, kFp8Rows},
    {20, 1, 128, 4096, kFp8Rows},
    {16, 1, 64, 131072, kBf16Rows, 64, Effort::kQuick, false, true},
    {128, 1, 64, 131072, kBf16Rows, 64, Effort::kQuick, false, true},
    {16, 4, 4, 45118, kBf16Rows, 64, Effort::kQuick, false, false, Drafts::kChains},
    {16, 4, 4, 45118, kBf16Rows, 64, Effort::kQuick, false, false, Drafts::kTrees},
    {8, 1, 1, 150},
    {16, 1, 2, 1024},
    {16, 1, 4, 1024},
    {16, 1, 8, 1024},
    {16, 1, 16, 1024},
    {16, 1, 32, 1024},
    {16, 1, 64, 1024},
    {16, 1, 100, 1024},
    {16, 1, 2, 8192},
    {16, 1, 4, 8192},
    {16, 1, 8, 8192},
    {16, 1, 16, 8192},
    {8, 1, 1, 150, kBf16Rows, 64, Effort::kFull, false, false, Drafts::kNone, true},
    {16, 1, 1, 1024, kBf16Rows, 64, Effort::kQuick, true, false, Drafts::kNone, true},
    {16, 1, 1, 1024, kBf16Rows, 64, Effort::kQuick, false, false, Drafts::kNone, true},
    {16, 1, 1, 8192, kBf16Rows, 64, Effort::kQuick, false, false, Drafts::kNone, true},
    {16, 1, 1, 131072, kBf16Rows, 64, Effort::kQuick, false, false, Drafts::kNone, true},
    {128, 1, 1, 8192, kBf16Rows, 64, Effort::kFull, false, false, Drafts::kNone, true},
};

SequenceShape SequencesOf(const AttentionShape& shape) {
  SequenceShape of{.num_seqs = shape.num_seqs,
                   .q_len = TokenCount(shape.q_len),
                   .kv_len = TokenCount(shape.kv_len),
                   .is_mixed = shape.is_mixed,
                   .page_size = PageSize(shape.page_size)};
  if (shape.drafts != Drafts::kNone) of.lengths = kDraftedLengths;
  if (shape.drafts == Drafts::kTrees) of.tree_parents = kDraftedParents;
  return of;
}

std::string NameOf(const AttentionShape& shape) {
  std::string of = shape.format == KvFormat::kLatentFp8 ? "_fp8" : "";
  if (shape.exact) of += "_exact";
  if (shape.is_mixed) of += "_mixed";
  if (shape.drafts != Drafts::kNone) of += shape.drafts == Drafts::kTrees ? "_trees" : "_chains";
  if (shape.overlaps) of += "_ahead";
  return fmt::format("attention/{}h_q{}_b{}_s{}{}/p{}", shape.num_heads, shape.q_len,
                     shape.num_seqs, shape.kv_len, of, shape.page_size);
}

struct Roofs {
  double read_bytes_per_s = 0, mma_flops_per_s = 0;
};

Roofs MeasureRoofs(int num_sms) {
  const Stream stream;
  const DeviceBuffer sink("sink", ByteOffset(4));
  double flops = 0;
  const double mma = SecondsOf(stream, 10, [&] {
    flops = LaunchMmaRoof(num_sms, reinterpret_cast<float*>(sink.data()), stream);
  });
  return {.read_bytes_per_s = cuda::MeasureReadRoof(4), .mma_flops_per_s = flops / mma};
}

// A step and the stores of as many layers as it takes to leave the cache behind.
class AttentionStep {
 public:
  explicit AttentionStep(const AttentionShape& shape)
      : shape_{.num_heads = shape.num_heads},
        seqs_(SequencesOf(shape)),
        work_(MlaWorkShape(shape_, QueryMlaRoom(),
                           shape.q_len == 1 ? MlaStep::kDecode : MlaStep::kAny, shape.exact,
                           TokenCount(shape.num_seqs * shape.q_len), shape.format)),
        plans_(seqs_.capacity(), work_),
        host_plan_(plans_.Make(seqs_.steps(), executor_)),
        plan_(host_plan_),
        layers_(KvLayout(shape.format, shape_.dims, PageSize(shape.page_size)),
                seqs_.capacity().pool_pages),
        workspace_("workspace", MlaAttentionWorkspace(seqs_.capacity(), work_, shape_)),
        num_tokens_(host_plan_.num_query_tokens.raw()),
        q_(arrays_.Put(RandomBf16(num_tokens_ * shape_.num_heads * shape_.dims.values()))),
        out_(arrays_.Take<Bf16>(
            static_cast<size_t>(num_tokens_ * shape_.num_heads * shape_.dims.latent_dim))) {
    stream_.set_overlaps(shape.overlaps);
  }
  AttentionStep(const AttentionStep&) = delete;
  AttentionStep& operator=(const AttentionStep&) = delete;

  int64_t num_layers() const { return layers_.size(); }
  const Stream& stream() const { return stream_; }
  double Bytes() const {
    return static_cast<double>(
        MlaAttentionBytes(host_plan_, layers_[0], shape_, DType::kBf16).raw());
  }
  double Flops() const { return MlaAttentionFlops(host_plan_, shape_); }

  void RunLayer(int64_t layer) {
    const KvStore store = layers_[layer];
    MlaAttention({.plan = plan_.plan(),
                  .store = store,
                  .q = {q_.data(), {num_tokens_, shape_.num_heads, shape_.dims.values()}},
                  .out = {out_.data(), {num_tokens_, shape_.num_heads, shape_.dims.latent_dim}},
                  .scale = 0.1f,
                  .workspace = workspace_.bytes()},
                 stream_);
  }

 private:
  SerialExecutor executor_;
  MlaShape shape_;
  Sequences seqs_;
  WorkShape work_;
  quire::PlanStorage plans_;
  const Plan& host_plan_;
  PlanCopy plan_;
  CudaLayers layers_;
  DeviceBuffer workspace_;
  Stream stream_;
  DeviceArrays arrays_;
  int64_t num_tokens_;
  std::span<Bf16> q_, out_;
};

// The roofs, measured before the first shape.
using LazyRoofs = std::shared_ptr<std::unique_ptr<Roofs>>;

void RunAttention(const AttentionShape& shape, const LazyRoofs& roofs, benchmark::State& state) {
  const int num_sms = QueryDevice().num_sms;
  if (*roofs == nullptr) *roofs = std::make_unique<Roofs>(MeasureRoofs(num_sms));
  AttentionStep step(shape);
  const double seconds = SecondsOfLayers(state, step.stream(), step.num_layers(),
                                         [&](int64_t layer) { step.RunLayer(layer); });
  const auto rate = [&](double amount) { return amount / seconds; };
  state.counters["TB/s"] = rate(step.Bytes() / 1e12);
  state.counters["TFLOP/s"] = rate(step.Flops() / 1e12);
  state.counters["%read"] = rate(100 * step.Bytes() / (*roofs)->read_bytes_per_s);
  state.counters["%mma"] = rate(100 * step.Flops() / (*roofs)->mma_flops_per_s);
}

}  // namespace

void RegisterCudaAttention(Effort effort) {
  const auto roofs = std::make_shared<std::unique_ptr<Roofs>>();
  for (const AttentionShape& shape : kAttentionShapes) {
    if (effort < shape.least_effort) continue;
    benchmark::RegisterBenchmark(
        NameOf(shape).c_str(),
        [roofs, shape](benchmark::State& state) { RunAttention(shape, roofs, state); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(20);  // inputs are made once
  }
}

}  // namespace quire::bench
