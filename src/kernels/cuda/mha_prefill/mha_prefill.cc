#include "kernels/cuda/mha_prefill/mha_prefill.h"

#include "base/error.h"
#include "base/maths.h"
#include "kernels/attention_checks.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/weight_packer.h"

namespace quire::cuda {
namespace {

// Heads of `dim` outputs each, as the rows of one matrix.
WeightView OneMatrix(const Weight& weight) {
  WeightView view = ViewOf(weight);
  view.shape.outputs *= view.count;
  view.count = 1;
  view.matrix_stride = view.shape.outputs * view.row_stride;
  return view;
}

void RequireHeads(const char* name, const Weight& weight, const MhaShape& shape, int32_t dim) {
  Require(weight.format == WeightFormat::kBf16 && weight.count == shape.num_heads &&
              weight.shape.outputs == dim && weight.shape.inputs == shape.dims.latent_dim,
          "{}: expected {} bf16 matrices of {} x {}, got {} of {} x {}", name, shape.num_heads, dim,
          shape.dims.latent_dim, weight.count, weight.shape.outputs, weight.shape.inputs);
}

void Validate(const AttendExpandedArgs& args, const ExpandedKeys& keys) {
  const MhaShape& shape = args.shape;
  quire::Validate(shape);
  RequireOnDevice(args.plan);
  RequireLatentStore(args.plan, args.store);
  Require(shape.dims == args.store.layout().dims(),
          "shape.dims: expected the store's {} + {}, got {} + {}",
          args.store.layout().dims().latent_dim, args.store.layout().dims().rope_dim,
          shape.dims.latent_dim, shape.dims.rope_dim);
  Require(CanExpand(shape), "heads: there is no kernel for keys of {} + {} and values of {}",
          shape.nope_dim, shape.dims.rope_dim, shape.value_dim);
  const int64_t num_tokens = args.q.rank() == 3 ? args.q.dim(0) : 0;
  const int64_t head_dim = shape.nope_dim + shape.dims.rope_dim;
  RequireShape("q", args.q, {num_tokens, shape.num_heads, head_dim});
  Require(
      args.q.dtype() == DType::kBf16 && args.q.stride(1) == head_dim && args.q.stride(0) % 8 == 0,
      "q: expected bf16 heads side by side in rows of whole 16 bytes, got {} with strides {}, {}",
      DTypeName(args.q.dtype()), args.q.stride(0), args.q.stride(1));
  RequireHeads("key_up", args.key_up, shape, shape.nope_dim);
  RequireHeads("value_up", args.value_up, shape, shape.value_dim);
  RequireShape("out", args.out, {num_tokens, shape.num_heads, shape.value_dim});
  const bool in_chunks = args.out.stride(0) % 8 == 0 && args.out.stride(1) % 8 == 0;
  Require(args.out.dtype() == DType::kF32 || in_chunks,
          "out: expected rows of whole 16 bytes, got strides {}, {}", args.out.stride(0),
          args.out.stride(1));
  RequireLse(args.lse, num_tokens, shape.num_heads);
  const int64_t rows = (kExpandedBlock * std::ssize(args.expansion.blocks)).raw();
  Require(keys.rope.dim(0) == rows, "keys: expected {} rows, got {}", rows, keys.rope.dim(0));
}

// The keys and values of all heads, of as many rows as the step has.
void Expand(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream,
            StatusWord status) {
  const int32_t* offsets = args.expansion.counts[0].row_offsets;  // an address on the device
  const auto product = [&](const Weight& weight, TensorView y) {
    ExpertGemm(
        {.x = keys.latent, .w = OneMatrix(weight), .offsets = offsets, .y = y, .status = status},
        stream, TileSize::kPrefill);
  };
  product(args.key_up, keys.keys);
  product(args.value_up, keys.values);
}

}  // namespace

bool CanExpand(const MhaShape& shape) {
  if (shape.dims.latent_dim > kMaxExpandedLatent || shape.dims.latent_dim % 8 != 0) return false;
  if (shape.dims.rope_dim > kPanelColumns || shape.dims.rope_dim % 8 != 0) return false;
  return (shape.nope_dim == 64 && shape.value_dim == 64) ||
         (shape.nope_dim == 128 && shape.value_dim == 128) ||
         (shape.nope_dim == 192 && shape.value_dim == 256);
}

ExpandedKeys LayOutExpandedKeys(const MhaShape& shape, TokenCount rows, Carver& carver) {
  const int64_t n = rows.raw();
  const auto take = [&](int64_t width) { return carver.TakeTensor(DType::kBf16, {n, width}); };
  return {.latent = take(shape.dims.latent_dim),
          .rope = take(kPanelColumns),
          .keys = take(int64_t{shape.num_heads} * shape.nope_dim),
          .values = take(int64_t{shape.num_heads} * shape.value_dim),
          .poison = carver.Take<uint8_t>(n),
          .next_item = carver.Take<int32_t>(1),
          .poisoned = carver.Take<int32_t>(CeilDiv(n, int64_t{kPoisonRows}))};
}

ByteOffset ExpandedKeyBytes(const MhaShape& shape) {
  Carver counter;
  LayOutExpandedKeys(shape, kExpandedBlock, counter);
  return ByteOffset(CeilDiv(counter.used().raw(), kExpandedBlock.raw()));
}

void AttendExpanded(const AttendExpandedArgs& args, const ExpandedKeys& keys, const Stream& stream,
                    StatusWord status) {
  Validate(args, keys);
  LaunchMhaGather(args, keys, stream, status);
  Expand(args, keys, stream, status);
  LaunchMhaAttend(args, keys, stream);
}

}  // namespace quire::cuda
