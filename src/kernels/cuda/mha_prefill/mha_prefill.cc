#include "kernels/cuda/mha_prefill/mha_prefill.h"

#include <algorithm>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/attention_checks.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"

namespace quire::cuda {
namespace {

// The parts of the workspace, each on a multiple of 256 bytes.
struct Parts {
  int64_t latent, rope, poison, expanded, sums, end;

  static Parts Of(const MhaShape& shape, int64_t max_q_len, int64_t chunk) {
    constexpr int64_t kAlignment = 256;
    const int64_t outputs = int64_t{shape.num_heads} * (shape.nope_dim + shape.value_dim);
    Parts parts{};
    int64_t at = 0;
    auto take = [&](int64_t& begin, int64_t bytes) {
      begin = at;
      at += RoundUp(bytes, kAlignment);
    };
    take(parts.latent, 2 * chunk * shape.dims.latent_dim);
    take(parts.rope, 2 * chunk * shape.dims.rope_dim);
    take(parts.poison, chunk);
    take(parts.expanded, 2 * chunk * outputs);
    take(parts.sums, 4 * max_q_len * shape.num_heads * (shape.value_dim + 2));
    parts.end = at;
    return parts;
  }
};

// quire::Validate asks the plan whether a sequence is a tree, and this plan lies on the device.
void Validate(const MhaPrefillArgs& args, std::span<const SequenceLengths> lengths,
              int64_t workspace_bytes) {
  const MhaShape& shape = args.shape;
  quire::Validate(shape);
  RequireOnDevice(args.plan);
  RequireLatentStore(args.plan, args.store);
  Require(std::ssize(lengths) <= args.plan.num_seqs,
          "lengths: expected those of the plan's {} sequences at most, got {}", args.plan.num_seqs,
          lengths.size());
  Require(shape.dims == args.store.layout().dims(),
          "shape.dims: expected the store's {} + {}, got {} + {}",
          args.store.layout().dims().latent_dim, args.store.layout().dims().rope_dim,
          shape.dims.latent_dim, shape.dims.rope_dim);
  Require(shape.nope_dim + shape.dims.rope_dim <= kMaxHeadDim && shape.value_dim <= kMaxHeadDim,
          "heads: expected up to {} values, got keys of {} + {} and values of {}", kMaxHeadDim,
          shape.nope_dim, shape.dims.rope_dim, shape.value_dim);
  Require(args.chunk > TokenCount(0) && args.chunk.raw() % kKeyTile.raw() == 0,
          "chunk: expected a positive multiple of {}, got {}", kKeyTile, args.chunk);
  const int64_t num_tokens = args.q.rank() == 3 ? args.q.dim(0) : 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    Require(!lengths[b].is_tree(), "sequence {}: a tree; expected a causal sequence", b);
    Require((lengths[b].q_begin + lengths[b].q_len).raw() <= num_tokens,
            "sequence {}: queries {}..{} of a step of {}", b, lengths[b].q_begin,
            lengths[b].q_begin + lengths[b].q_len, num_tokens);
  }
  RequireShape("q", args.q, {num_tokens, shape.num_heads, shape.nope_dim + shape.dims.rope_dim});
  RequireShape(
      "w_kv_b", args.w_kv_b,
      {int64_t{shape.num_heads} * (shape.nope_dim + shape.value_dim), shape.dims.latent_dim});
  Require(args.w_kv_b.dtype() == DType::kBf16, "w_kv_b: expected bf16, got {}",
          DTypeName(args.w_kv_b.dtype()));
  RequireShape("out", args.out, {num_tokens, shape.num_heads, shape.value_dim});
  RequireLse(args.lse, num_tokens, shape.num_heads);
  RequireWorkspace(args.workspace, ByteOffset(workspace_bytes), [&] {
    return fmt::format("chunks of {} keys, {} heads, {} + {} -> {} + {} values", args.chunk,
                       shape.num_heads, shape.dims.latent_dim, shape.dims.rope_dim, shape.nope_dim,
                       shape.value_dim);
  });
}

void Expand(const MhaPrefillArgs& args, const MhaChunk& chunk, const Stream& stream) {
  const int64_t outputs = args.w_kv_b.dim(0), inputs = args.w_kv_b.dim(1);
  WeightView weights =
      DenseWeights(args.w_kv_b.Address<Bf16>(), {.outputs = outputs, .inputs = inputs});
  weights.row_stride = args.w_kv_b.stride(0);
  Gemm({.x = {chunk.latent, {chunk.num_keys, inputs}},
        .w = weights,
        .y = {chunk.expanded, {chunk.num_keys, outputs}}},
       stream);
}

}  // namespace

ByteOffset MhaPrefillWorkspace(const MhaShape& shape, TokenCount max_q_len, TokenCount chunk) {
  quire::Validate(shape);
  return ByteOffset(Parts::Of(shape, max_q_len.raw(), chunk.raw()).end);
}

void MhaPrefill(const MhaPrefillArgs& args, std::span<const SequenceLengths> lengths,
                const Stream& stream, StatusWord status) {
  TokenCount max_q_len{0};
  for (const SequenceLengths& seq : lengths) max_q_len = Max(max_q_len, seq.q_len);
  const Parts parts = Parts::Of(args.shape, max_q_len.raw(), args.chunk.raw());
  Validate(args, lengths, parts.end);
  std::byte* memory = args.workspace.data();
  MhaChunk chunk{.latent = reinterpret_cast<Bf16*>(memory + parts.latent),
                 .rope = reinterpret_cast<Bf16*>(memory + parts.rope),
                 .poison = reinterpret_cast<uint8_t*>(memory + parts.poison),
                 .expanded = reinterpret_cast<Bf16*>(memory + parts.expanded),
                 .sums = reinterpret_cast<float*>(memory + parts.sums)};
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b].q_len == TokenCount(0)) continue;
    chunk.seq = static_cast<int32_t>(b);
    chunk.q_begin = lengths[b].q_begin.raw();
    chunk.q_len = static_cast<int32_t>(lengths[b].q_len.raw());
    chunk.kv_len = static_cast<int32_t>(lengths[b].kv_len.raw());
    chunk.begin = 0;
    do {  // once at least: queries that see nothing are written too
      chunk.num_keys = std::min(static_cast<int32_t>(args.chunk.raw()), chunk.kv_len - chunk.begin);
      if (chunk.num_keys > 0) {
        LaunchMhaGather(args, chunk, stream, status);
        Expand(args, chunk, stream);
      }
      LaunchMhaAttend(args, chunk, stream);
      chunk.begin += static_cast<int32_t>(args.chunk.raw());
    } while (chunk.begin < chunk.kv_len);
  }
}

}  // namespace quire::cuda
