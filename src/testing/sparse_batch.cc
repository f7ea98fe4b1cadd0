#include "testing/sparse_batch.h"

#include <stdexcept>
#include <string>

#include "attn/plan_storage.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/select_keys.h"
#include "kernels/cpu/sparse_attention.h"
#include "testing/red_zone.h"

namespace quire::testing {
namespace {

void ThrowIfDamaged(const std::string& damage) {
  if (!damage.empty()) throw std::runtime_error("red zone " + damage);
}

size_t Size(ByteOffset bytes) { return static_cast<size_t>(bytes.raw()); }

}  // namespace

IndexShape IndexShapeOf(const PagedBatch& batch, const SelectRun& run) {
  return {.num_heads = batch.shape().num_heads,
          .head_dim = batch.shape().dims.latent_dim,
          .top_k = run.top_k,
          .init_tokens = run.init_tokens,
          .local_tokens = run.local_tokens};
}

std::vector<int32_t> RunSelect(const PagedBatch& batch, const SelectRun& run, Executor& executor) {
  const IndexShape shape = IndexShapeOf(batch, run);
  const WorkShape work{.query_tile = TokenCount(run.query_tile), .num_workers = run.num_workers};
  PlanStorage storage(batch.Capacity(), work);
  const int64_t tokens = batch.num_tokens();
  RedZone<int32_t> chosen(static_cast<size_t>(tokens * run.top_k));
  RedZone<std::byte> workspace(Size(cpu::SelectKeysWorkspace(work, shape)));
  cpu::SelectKeys(
      {.plan = storage.Make(batch.seqs(), executor),
       .store = batch.store(),
       .shape = shape,
       .q = ConstTensorView(batch.q().data(), {tokens, shape.num_heads, shape.head_dim}),
       .gates = ConstTensorView(batch.gates().data(), {tokens, shape.num_heads}),
       .scale = run.scale,
       .chosen = chosen.span(),
       .workspace = workspace.span()},
      executor);
  ThrowIfDamaged(chosen.Damage());
  ThrowIfDamaged(workspace.Damage());
  return chosen.values();
}

AttentionResult RunSparse(const PagedBatch& batch, std::span<const int32_t> chosen, int32_t top_k,
                          int32_t num_workers, Executor& executor) {
  const PagedBatchShape& shape = batch.shape();
  const MlaShape mla{.num_heads = shape.num_heads, .dims = shape.dims};
  const WorkShape work = cpu::MlaWorkShape(mla, num_workers);
  PlanStorage storage(batch.Capacity(), work);
  const int64_t tokens = batch.num_tokens();
  const int64_t rows = tokens * shape.num_heads;
  RedZone<float> out(static_cast<size_t>(rows * shape.dims.latent_dim));
  RedZone<float> lse(static_cast<size_t>(rows));
  RedZone<std::byte> workspace(Size(cpu::SparseAttentionWorkspace(work, mla)));
  cpu::SparseAttention(
      {.plan = storage.Make(batch.seqs(), executor),
       .store = batch.store(),
       .q = ConstTensorView(batch.q().data(), {tokens, shape.num_heads, shape.dims.values()}),
       .chosen = chosen,
       .top_k = top_k,
       .out = TensorView(out.data(), {tokens, shape.num_heads, shape.dims.latent_dim}),
       .lse = TensorView(lse.data(), {tokens, shape.num_heads}),
       .scale = kScale,
       .workspace = workspace.span()},
      executor);
  ThrowIfDamaged(out.Damage());
  ThrowIfDamaged(lse.Damage());
  ThrowIfDamaged(workspace.Damage());
  return {.out = out.values(), .lse = lse.values()};
}

}  // namespace quire::testing
