#include "bench/sparse_bench.h"

#include <fmt/format.h>

#include <algorithm>
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
#include "kernels/cpu/select_keys.h"
#include "kernels/cpu/sparse_attention.h"
#include "kernels/cpu/store.h"

namespace quire::bench {
namespace {

// kSelect: an indexer of heads of 128 over its index keys; DeepSeek-V3.2's has 64. kAttend: attention over
// the 2048 chosen keys. kDense: over all keys, what the two together stand in for.
enum class Op { kSelect, kAttend, kDense };

struct SparseShape {
  const char* name;
  Op op;
  int32_t num_heads;  // of the indexer, or of attention
  int32_t num_seqs;
  int64_t kv_len;
  int32_t page_size = 64;
  KvFormat format = KvFormat::kIndexKeyFp8;
  Effort least_effort = Effort::kFull;
};

constexpr int32_t kTopK = 2048;
constexpr KvDims kIndexKey{.latent_dim = 128, .rope_dim = 0};
constexpr auto kPreshuffled = KvFormat::kIndexKeyFp8Preshuffled;
constexpr auto kLatentRows = KvFormat::kLatentBf16;

constexpr SparseShape kSparseShapes[] = {
    {"select_b1_s8k", Op::kSelect, 64, 1, 8192, 1},
    {"select_b1_s8k", Op::kSelect, 64, 1, 8192, 16},
    {"select_b1_s8k", Op::kSelect, 64, 1, 8192, 16, kPreshuffled},
    {"select_b1_s8k", Op::kSelect, 64, 1, 8192, 64, KvFormat::kIndexKeyFp8, Effort::kQuick},
    {"select_b1_s8k", Op::kSelect, 64, 1, 8192, 64, kPreshuffled, Effort::kQuick},
    {"select_b8_s8k", Op::kSelect, 64, 8, 8192},
    {"select_b1_s4k", Op::kSelect, 64, 1, 4096},
    {"select_b1_s16k", Op::kSelect, 64, 1, 16384},
    {"select_b1_s64k", Op::kSelect, 64, 1, 65536},
    {"select_b1_s128k", Op::kSelect, 64, 1, 131072},
    {"select_b1_s8k", Op::kSelect, 16, 1, 8192},
    {"select_b1_s64k", Op::kSelect, 16, 1, 65536},
    {"select_b1_s128k", Op::kSelect, 16, 1, 131072},
    {"select_b8_s8k", Op::kSelect, 16, 8, 8192},
    {"select_b8_s64k", Op::kSelect, 16, 8, 65536},
    {"select_b8_s128k", Op::kSelect, 16, 8, 131072},
    {"attend_b1_s16k", Op::kAttend, 16, 1, 16384, 64, kLatentRows},
    {"attend_b8_s16k", Op::kAttend, 16, 8, 16384, 64, kLatentRows},
    {"dense_b1_s16k", Op::kDense, 16, 1, 16384, 64, kLatentRows},
    {"dense_b8_s16k", Op::kDense, 16, 8, 16384, 64, kLatentRows},
    {"attend_b1_s16k", Op::kAttend, 128, 1, 16384, 64, kLatentRows, Effort::kQuick},
    {"dense_b1_s2k", Op::kDense, 128, 1, 2048, 64, kLatentRows},
    {"dense_b1_s4k", Op::kDense, 128, 1, 4096, 64, kLatentRows},
    {"dense_b1_s8k", Op::kDense, 128, 1, 8192, 64, kLatentRows},
    {"dense_b1_s16k", Op::kDense, 128, 1, 16384, 64, kLatentRows, Effort::kQuick},
    {"dense_b1_s64k", Op::kDense, 128, 1, 65536, 64, kLatentRows},
    {"dense_b1_s128k", Op::kDense, 128, 1, 131072, 64, kLatentRows},
};

class SparseStep {
 public:
  SparseStep(const SparseShape& shape, Executor& executor)
      : op_(shape.op),
        executor_(executor),
        mla_{.num_heads = shape.num_heads},
        heads_(shape.num_heads),
        dims_(op_ == Op::kSelect ? kIndexKey : mla_.dims),
        seqs_({.num_seqs = shape.num_seqs,
               .kv_len = TokenCount(shape.kv_len),
               .page_size = PageSize(shape.page_size)}),
        plans_(seqs_.capacity(), cpu::MlaWorkShape(mla_, executor.num_threads())),
        plan_(plans_.Make(seqs_.steps(), executor)),
        layout_(shape.format, dims_, PageSize(shape.page_size)),
        kv_("keys", KvStoreBytes(layout_, seqs_.capacity().pool_pages)),
        store_(kv_.bytes(), seqs_.capacity().pool_pages, layout_),
        workspace_("workspace", WorkspaceBytes()),
        q_(RandomFloats(num_tokens() * heads_ * dims_.values())),
        gates_(RandomFloats(num_tokens() * heads_)),
        out_(static_cast<size_t>(num_tokens() * heads_ * dims_.latent_dim)),
        chosen_(static_cast<size_t>(num_tokens() * kTopK)) {
    FillStore();
    // Every eighth key of 16k.
    const int64_t stride = shape.kv_len / kTopK;
    for (size_t i = 0; i < chosen_.size(); ++i) {
      chosen_[i] = static_cast<int32_t>(static_cast<int64_t>(i % kTopK) * stride);
    }
  }
  SparseStep(const SparseStep&) = delete;
  SparseStep& operator=(const SparseStep&) = delete;

  void RunNextLayer() {
    const ConstTensorView q(q_.data(), {num_tokens(), heads_, dims_.values()});
    const TensorView out(out_.data(), {num_tokens(), heads_, dims_.latent_dim});
    constexpr float kScale = 0.04f;
    switch (op_) {
      case Op::kSelect:
        cpu::SelectKeys({.plan = plan_,
                         .store = store_,
                         .shape = index(),
                         .q = q,
                         .gates = {gates_.data(), {num_tokens(), heads_}},
                         .scale = kScale,
                         .chosen = chosen_,
                         .workspace = workspace_.bytes()},
                        executor_);
        return;
      case Op::kAttend:
        cpu::SparseAttention({.plan = plan_,
                              .store = store_,
                              .q = q,
                              .chosen = chosen_,
                              .top_k = kTopK,
                              .out = out,
                              .scale = kScale,
                              .workspace = workspace_.bytes()},
                             executor_);
        return;
      case Op::kDense:
        cpu::MlaAttention({.plan = plan_,
                           .store = store_,
                           .q = q,
                           .out = out,
                           .scale = kScale,
                           .workspace = workspace_.bytes()},
                          executor_);
        return;
    }
  }

  // Keys that are read, each once.
  double Bytes() const { return KeysRead() * layout_.packed_row_bytes(); }
  double Flops() const {
    const int64_t values = dims_.values() + (op_ == Op::kSelect ? 0 : dims_.latent_dim);
    return 2.0 * KeysRead() * static_cast<double>(heads_ * values);
  }

 private:
  int64_t num_tokens() const { return plan_.num_query_tokens.raw(); }
  IndexShape index() const {
    return {.num_heads = static_cast<int32_t>(heads_), .head_dim = 128, .top_k = kTopK};
  }
  double KeysRead() const {
    const double kv_len = static_cast<double>(plan_.kv_len[0].raw());
    return static_cast<double>(num_tokens()) * (op_ == Op::kAttend ? kTopK : kv_len);
  }
  ByteOffset WorkspaceBytes() const {
    switch (op_) {
      case Op::kSelect:
        return cpu::SelectKeysWorkspace(plan_.work, index());
      case Op::kAttend:
        return cpu::SparseAttentionWorkspace(plan_.work, mla_);
      case Op::kDense:
        break;
    }
    return cpu::MlaAttentionWorkspace(seqs_.capacity(), plan_.work, mla_);
  }

  void FillStore() const {
    constexpr int64_t kRows = 1024;
    const std::vector<float> latent = RandomFloats(kRows * dims_.latent_dim);
    const std::vector<float> rope = RandomFloats(kRows * dims_.rope_dim);
    const PageSize page_size = layout_.page_size();
    const int64_t end = page_size.TokensIn(seqs_.capacity().pool_pages).raw();
    std::vector<Slot> slots;
    for (int64_t slot = page_size.raw(); slot < end;) {
      slots.clear();
      for (; slot < end && std::ssize(slots) < kRows; ++slot) slots.emplace_back(slot);
      StoreWriteArgs rows{.store = store_,
                          .slots = slots,
                          .latent = {latent.data(), {std::ssize(slots), dims_.latent_dim}}};
      if (dims_.rope_dim > 0) rows.rope = {rope.data(), {std::ssize(slots), dims_.rope_dim}};
      cpu::StoreWrite(rows, executor_);
    }
  }

  Op op_;
  Executor& executor_;
  MlaShape mla_;
  int64_t heads_;
  KvDims dims_;
  Sequences seqs_;
  PlanStorage plans_;
  const Plan& plan_;
  KvLayout layout_;
  Buffer kv_;
  KvStore store_;
  Buffer workspace_;
  std::vector<float> q_, gates_, out_;
  std::vector<int32_t> chosen_;
};

std::string Label(const SparseShape& shape) {
  const char* kind = shape.op != Op::kSelect        ? "bf16"
                     : shape.format == kPreshuffled ? "preshuffled"
                                                    : "plain";
  return fmt::format("{} heads, {}", shape.num_heads, kind);
}

}  // namespace

void RegisterSparse(Effort effort, Executor& executor) {
  using Bench = RoofBench<SparseStep, SparseShape>;
  const auto bench = std::make_shared<Bench>(effort, executor);
  for (const SparseShape& shape : kSparseShapes) {
    if (effort < shape.least_effort) continue;
    // A name is of one shape: what it differs in stands in it.
    const std::string name =
        fmt::format("sparse/{}_h{}{}/p{}", shape.name, shape.num_heads,
                    shape.format == kPreshuffled ? "_tiled" : "", shape.page_size);
    Bench::Register(bench, shape, name, Label(shape));
  }
}

}  // namespace quire::bench
