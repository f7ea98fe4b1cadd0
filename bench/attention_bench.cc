#include "bench/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attn/kv_store.h"
#include "attn/plan_storage.h"
#include "bench/random_floats.h"
#include "bench/roof_bench.h"
#include "bench/sequences.h"
#include "device/buffer.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/store.h"

namespace quire::bench {
namespace {

// Dimensions of DeepSeek-V2-Lite (16 heads; a V3 layer cut over 8 ranks has as many) and of
// DeepSeek-V3 (128 heads).
struct AttentionShape {
  const char* name;
  int32_t num_heads;
  int32_t num_seqs;
  int64_t q_len;
  int64_t kv_len;
  int32_t page_size = 64;
  KvFormat format = KvFormat::kLatentBf16;
  Effort least_effort = Effort::kFull;
};

constexpr AttentionShape kAttentionShapes[] = {
    {"v2lite_decode_b8_s4k", 16, 8, 1, 4096, 64, KvFormat::kLatentBf16, Effort::kQuick},
    {"v2lite_decode_b8_s4k", 16, 8, 1, 4096, 64, KvFormat::kLatentFp8},
    {"v2lite_decode_b1_s128k", 16, 1, 1, 131072},
    {"v2lite_prefill_512_s4k", 16, 1, 512, 4096, 64, KvFormat::kLatentBf16, Effort::kQuick},
    {"v3_decode_b4_s4k", 128, 4, 1, 4096, 1},
    {"v3_decode_b4_s4k", 128, 4, 1, 4096, 16},
    {"v3_decode_b4_s4k", 128, 4, 1, 4096, 64, KvFormat::kLatentBf16, Effort::kQuick},
    {"v3_decode_b4_s4k", 128, 4, 1, 4096, 64, KvFormat::kLatentFp8},
    {"v3_decode_b1_s128k", 128, 1, 1, 131072},
    {"v3_prefill_256_s4k", 128, 1, 256, 4096},
};

const char* ShortName(KvFormat format) {
  return format == KvFormat::kLatentBf16 ? "bf16" : format == KvFormat::kLatentFp8 ? "fp8" : "f32";
}

// Four times the last cache, so that no layer's keys are still in it when their turn comes again.
ByteOffset KvBytesToVisit() {
  int64_t largest = 0;
  for (const auto& cache : benchmark::CPUInfo::Get().caches) {
    largest = std::max<int64_t>(largest, cache.size);
  }
  return ByteOffset(std::max(4 * largest, int64_t{256} << 20));
}

// A step and the stores of as many layers as it takes to leave the cache behind.
class AttentionStep {
 public:
  AttentionStep(const AttentionShape& shape, Executor& executor)
      : executor_(executor),
        shape_{.num_heads = shape.num_heads},
        seqs_({.num_seqs = shape.num_seqs,
               .q_len = TokenCount(shape.q_len),
               .kv_len = TokenCount(shape.kv_len),
               .page_size = PageSize(shape.page_size)}),
        plans_(seqs_.capacity(), cpu::MlaWorkShape(shape_, executor.num_threads())),
        plan_(plans_.Make(seqs_.steps(), executor)),
        layout_(shape.format, shape_.dims, PageSize(shape.page_size)),
        layer_bytes_(KvStoreBytes(layout_, seqs_.capacity().pool_pages)),
        num_layers_(CeilDiv(KvBytesToVisit(), layer_bytes_)),
        kv_("KV of all layers", layer_bytes_ * num_layers_),
        workspace_("workspace", cpu::MlaAttentionWorkspace(seqs_.capacity(), plan_.work, shape_)),
        q_(RandomFloats(plan_.num_query_tokens.raw() * shape_.num_heads * shape_.dims.values())),
        out_(static_cast<size_t>(plan_.num_query_tokens.raw() * shape_.num_heads *
                                 shape_.dims.latent_dim)) {
    FillLayers();
  }
  AttentionStep(const AttentionStep&) = delete;
  AttentionStep& operator=(const AttentionStep&) = delete;

  void RunNextLayer() {
    layer_ = (layer_ + 1) % num_layers_;
    const KvStore store = Layer(layer_);
    const int64_t num_tokens = plan_.num_query_tokens.raw();
    cpu::MlaAttention({.plan = plan_,
                       .store = store,
                       .q = {q_.data(), {num_tokens, shape_.num_heads, shape_.dims.values()}},
                       .out = {out_.data(), {num_tokens, shape_.num_heads, shape_.dims.latent_dim}},
                       .scale = 0.04f,  // about 576^-1/2: scores of unit size
                       .workspace = workspace_.bytes()},
                      executor_);
  }

  double Bytes() const {
    return static_cast<double>(MlaAttentionBytes(plan_, Layer(0), shape_, DType::kF32).raw());
  }
  double Flops() const { return MlaAttentionFlops(plan_, shape_); }

 private:
  KvStore Layer(int64_t layer) const {
    return {kv_.bytes().subspan(static_cast<size_t>((layer_bytes_ * layer).raw()),
                                static_cast<size_t>(layer_bytes_.raw())),
            seqs_.capacity().pool_pages, layout_};
  }

  // The same random rows over and over, by the store's own writer: right for every format.
  void FillLayers() const {
    constexpr int64_t kRows = 1024;
    const KvDims dims = shape_.dims;
    const std::vector<float> latent = RandomFloats(kRows * dims.latent_dim);
    const std::vector<float> rope = RandomFloats(kRows * dims.rope_dim);
    const PageSize page_size = layout_.page_size();
    const int64_t end = page_size.TokensIn(seqs_.capacity().pool_pages).raw();
    std::vector<Slot> slots;
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      const KvStore store = Layer(layer);
      for (int64_t slot = page_size.raw(); slot < end;) {
        slots.clear();
        for (; slot < end && std::ssize(slots) < kRows; ++slot) slots.emplace_back(slot);
        cpu::StoreWrite({.store = store,
                         .slots = slots,
                         .latent = {latent.data(), {std::ssize(slots), dims.latent_dim}},
                         .rope = {rope.data(), {std::ssize(slots), dims.rope_dim}}},
                        executor_);
      }
    }
  }

  Executor& executor_;
  MlaShape shape_;
  Sequences seqs_;
  PlanStorage plans_;
  const Plan& plan_;
  KvLayout layout_;
  ByteOffset layer_bytes_;
  int64_t num_layers_;
  Buffer kv_;
  Buffer workspace_;
  std::vector<float> q_, out_;
  int64_t layer_ = 0;
};

std::string Label(const AttentionShape& shape) {
  return fmt::format("{} heads, {}", shape.num_heads, ShortName(shape.format));
}

}  // namespace

void RegisterAttention(Effort effort, Executor& executor) {
  using Bench = RoofBench<AttentionStep, AttentionShape>;
  const auto bench = std::make_shared<Bench>(effort, executor);
  for (const AttentionShape& shape : kAttentionShapes) {
    if (effort < shape.least_effort) continue;
    const std::string kind = shape.format == KvFormat::kLatentFp8 ? "_fp8" : "";
    const std::string name = fmt::format("attention/{}{}/p{}", shape.name, kind, shape.page_size);
    Bench::Register(bench, shape, name, Label(shape));
  }
}

}  // namespace quire::bench
