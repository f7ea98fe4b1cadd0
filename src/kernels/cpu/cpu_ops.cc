#include "kernels/cpu/cpu_ops.h"

#include <algorithm>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/select_keys.h"
#include "kernels/cpu/sparse_attention.h"
#include "kernels/cpu/store.h"
#include "kernels/cpu/weight_packer.h"

namespace quire::cpu {
namespace {

// Rows copied or unpacked by one task: enough that handing it out costs little.
constexpr int64_t kRowsPerTask = 16;

template <class Fn>
void ForEachRow(int64_t num_rows, Executor& executor, Fn fn) {
  const auto run = [&](int64_t task) {
    const int64_t end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) fn(row);
  };
  executor.Run(CeilDiv(num_rows, kRowsPerTask), run);
}

// The most products that run as one loop: a head each, or gate and up of each expert.
int64_t MaxProducts(const OpLimits& limits) {
  return std::max<int64_t>({2, limits.attention.num_heads, 2 * int64_t{limits.num_experts()}});
}

ByteOffset AttentionBytes(const OpLimits& limits) {
  const ByteOffset dense = MlaAttentionWorkspace(limits.capacity, limits.work, limits.attention);
  if (limits.index.num_heads == 0) return dense;
  return Max(dense, SparseAttentionWorkspace(limits.work, limits.attention));
}

// Rows [first, first + count) of a [rows, width] array.
template <class View>
View RowsOf(const View& view, int64_t first, int64_t count) {
  return View(view.template Address<float>() + first * view.stride(0), {count, view.dim(1)});
}

}  // namespace

OpScratch LayOutOps(const OpLimits& limits, Carver& carver) {
  const int64_t tokens = limits.num_tokens();
  const int64_t choices = limits.num_choices();
  const int64_t experts = limits.num_experts();
  const auto floats = [&](int64_t rows, int64_t width) {
    return carver.TakeTensor(DType::kF32, {rows, width});
  };
  OpScratch scratch;
  scratch.route_logits = floats(tokens, experts);
  scratch.route_weights = carver.Take<float>(choices);
  scratch.route_experts = carver.Take<int32_t>(choices);
  scratch.route_rows = carver.Take<int32_t>(choices);
  scratch.expert_offsets = carver.Take<int32_t>(experts > 0 ? experts + 1 : 0);
  scratch.expert_rows = floats(choices, limits.hidden_size);
  const int64_t computed = limits.expert_ranks > 1 ? limits.num_visitors() : choices;
  scratch.expert_gate_up = floats(computed, 2 * limits.expert_width);
  scratch.expert_activated = floats(computed, limits.expert_width);
  scratch.exchange = LayOutExchange(limits, carver);
  scratch.products = carver.Take<MatmulArgs>(MaxProducts(limits));
  scratch.attention = carver.TakeBytes(AttentionBytes(limits));
  scratch.selection = carver.TakeBytes(SelectionBytes(limits));
  return scratch;
}

ByteOffset SelectionBytes(const OpLimits& limits) {
  if (limits.index.num_heads == 0) return ByteOffset(0);
  return SelectKeysWorkspace(limits.work, limits.index);
}

void CpuOps::Embed(const EmbedArgs& args) {
  RequireShape("embed.hidden", args.hidden, {std::ssize(args.tokens), args.table.shape.inputs});
  const PackedMatrix table = MatrixOf(args.table);
  ForEachRow(std::ssize(args.tokens), executor_, [&](int64_t t) {
    const std::span<float> row(args.hidden.Row<float>(t), static_cast<size_t>(args.hidden.dim(1)));
    const int64_t token = args.tokens[static_cast<size_t>(t)] - args.first_token;
    if (!is_alone() && (token < 0 || token >= args.table.shape.outputs)) {
      std::ranges::fill(row, 0.0f);  // all bits 0: another rank has it
      return;
    }
    UnpackRow(table, token, row);
    if (args.scale != 1.0f) {
      for (float& value : row) value *= args.scale;
    }
  });
  if (is_alone()) return;
  QUIRE_CHECK(args.hidden.stride(0) == args.hidden.dim(1));
  ranks_->AllReduceOr({reinterpret_cast<uint32_t*>(args.hidden.data()),
                       static_cast<size_t>(args.hidden.dim(0) * args.hidden.dim(1))});
}

void CpuOps::GatherAngles(const StepAngles& angles) {
  const int64_t context = angles.table_cos.dim(0);
  const int64_t pairs = angles.cos.dim(1);
  for (int64_t t = 0; t < std::ssize(angles.positions); ++t) {
    const int64_t position = angles.positions[static_cast<size_t>(t)].raw();
    Require(position >= 0 && position < context,
            "gather_angles.positions[{}]: expected 0..{}, got {}", t, context - 1, position);
    std::copy_n(angles.table_cos.Row<float>(position), pairs, angles.cos.Row<float>(t));
    std::copy_n(angles.table_sin.Row<float>(position), pairs, angles.sin.Row<float>(t));
  }
}

void CpuOps::Norm(const RmsNormArgs& args) { RmsNorm(args, executor_); }

void CpuOps::Add(const AddArgs& args) {
  if (const auto* rows = std::get_if<ConstTensorView>(&args.update)) {
    AddScaled({.x = *rows, .scale = args.scale, .y = args.hidden}, executor_);
  } else if (const auto* experts = std::get_if<ExpertRows>(&args.update)) {
    Combine(*experts, args.scratch);
    AddScaled({.x = args.scratch, .scale = args.scale, .y = args.hidden}, executor_);
  }
}

void CpuOps::AddNorm(const AddNormArgs& args) {
  Add(args.add);
  RmsNorm({.x = args.add.hidden, .weight = args.weight, .eps = args.eps, .y = args.normed},
          executor_);
}

void CpuOps::Matmul(std::span<const ProductArgs> products) {
  size_t count = 0;
  for (const ProductArgs& product : products) {
    for (int64_t i = 0; i < product.w.count; ++i) {
      QUIRE_CHECK(count < scratch_.products.size(), "more than {} products at once",
                  scratch_.products.size());
      scratch_.products[count++] = {.x = product.x.rows.Shifted(i * product.x_step),
                                    .w = MatrixOf(product.w, i),
                                    .y = product.y.Shifted(i * product.y_step),
                                    .bias = product.bias};
    }
  }
  cpu::Matmul(scratch_.products.first(count), executor_);
}

void CpuOps::WriteKv(const WriteKvArgs& args) {
  const int64_t latent_dim = std::ssize(args.norm_weight);
  const int64_t rope_dim = args.kv.dim(1) - latent_dim;
  const TensorView latent = args.kv.Columns(0, latent_dim);
  const TensorView rope = args.kv.Columns(latent_dim, rope_dim);
  RmsNorm({.x = latent, .weight = args.norm_weight, .eps = args.eps, .y = latent}, executor_);
  const TensorView head = args.kv.Parts(1).Columns(latent_dim, rope_dim);
  Rope({.x = head,
        .cos = args.angles.cos,
        .sin = args.angles.sin,
        .pairs = args.angles.pairs,
        .y = head},
       executor_);
  StoreWrite({.store = args.store, .slots = args.slots, .latent = latent, .rope = rope}, executor_);
}

void CpuOps::Rotate(const RotateArgs& args) {
  Rope({.x = args.x,
        .cos = args.angles.cos,
        .sin = args.angles.sin,
        .pairs = args.angles.pairs,
        .y = args.y},
       executor_);
}

void CpuOps::AttendExpanded(const AttendExpandedArgs&) {
  QUIRE_CHECK(false, "prompts are not expanded on the CPU");
}

void CpuOps::Attend(const MlaAttentionArgs& args) {
  MlaAttentionArgs with_workspace = args;
  with_workspace.workspace = scratch_.attention;
  MlaAttention(with_workspace, executor_);
}

void CpuOps::WriteIndexKeys(const WriteIndexKeysArgs& args) {
  LayerNorm({.x = args.key,
             .weight = args.norm_weight,
             .bias = args.norm_bias,
             .eps = args.eps,
             .y = args.key},
            executor_);
  const TensorView rotated = args.key.Parts(1).Columns(0, 2 * args.angles.cos.dim(1));
  Rotate({.x = rotated, .angles = args.angles, .y = rotated});
  StoreWrite({.store = args.store, .slots = args.slots, .latent = args.key}, executor_);
}

void CpuOps::SelectKeys(const SelectKeysArgs& args) {
  SelectKeysArgs with_workspace = args;
  with_workspace.workspace = scratch_.selection;
  cpu::SelectKeys(with_workspace, executor_);
}

void CpuOps::AttendChosen(const SparseAttentionArgs& args) {
  SparseAttentionArgs with_workspace = args;
  with_workspace.workspace = scratch_.attention;
  SparseAttention(with_workspace, executor_);
}

void CpuOps::SiluMul(const SiluMulArgs& args) { cpu::SiluMul(args, executor_); }

ExpertRows CpuOps::Experts(const ExpertsArgs& args) {
  Route(args);
  SortByExpert(args);
  const SortedRows home{.rows = scratch_.expert_rows, .offsets = scratch_.expert_offsets};
  if (exchange_) {
    RunExperts(args, exchange_->Bring(home));
    exchange_->Return(home);
  } else {
    RunExperts(args, {.rows = home.rows,
                      .offsets = home.offsets.subspan(static_cast<size_t>(args.first_expert))});
    if (args.gate.count < args.shape.num_experts) GatherExperts(args);
  }
  const int64_t num_choices = args.x.rows.dim(0) * args.shape.top_k;
  return {.rows = scratch_.expert_rows.FirstRows(num_choices).Columns(0, args.down.shape.outputs),
          .row_of = scratch_.route_rows.first(static_cast<size_t>(num_choices)),
          .weights = scratch_.route_weights.first(static_cast<size_t>(num_choices))};
}

void CpuOps::Route(const ExpertsArgs& args) {
  const TensorView logits = scratch_.route_logits.FirstRows(args.x.rows.dim(0));
  Matmul(ProductArgs{.x = args.x, .w = args.router, .y = logits});
  const auto num_choices = static_cast<size_t>(args.x.rows.dim(0) * args.shape.top_k);
  cpu::Route({.shape = args.shape,
              .logits = logits,
              .bias = args.router_bias,
              .experts = scratch_.route_experts.first(num_choices),
              .weights = scratch_.route_weights.first(num_choices)},
             executor_);
}

// Gives every choice a row, rows of one expert together and in the order of tokens, and copies the
// tokens there.
void CpuOps::SortByExpert(const ExpertsArgs& args) {
  const int64_t num_choices = args.x.rows.dim(0) * args.shape.top_k;
  const std::span<int32_t> offsets = scratch_.expert_offsets;
  const auto expert_of = [&](int64_t choice) {
    return static_cast<size_t>(scratch_.route_experts[static_cast<size_t>(choice)]);
  };
  std::ranges::fill(offsets, 0);
  for (int64_t i = 0; i < num_choices; ++i) ++offsets[expert_of(i) + 1];
  if (args.used != nullptr) {
    *args.used = static_cast<int32_t>(
        std::ranges::count_if(offsets.subspan(1), [](int32_t count) { return count > 0; }));
  }
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  for (int64_t i = 0; i < num_choices; ++i) {
    scratch_.route_rows[static_cast<size_t>(i)] = offsets[expert_of(i)]++;
  }
  // Every offset has moved to the end of its expert, which is where the next one begins.
  std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
  offsets[0] = 0;
  ForEachRow(num_choices, executor_, [&](int64_t i) {
    const int32_t row = scratch_.route_rows[static_cast<size_t>(i)];
    std::copy_n(args.x.rows.Row<float>(i / args.shape.top_k), args.x.rows.dim(1),
                scratch_.expert_rows.Row<float>(row));
  });
}

// rows = down(silu(gate(rows)) * up(rows)), each by its own expert.
void CpuOps::RunExperts(const ExpertsArgs& args, const SortedRows& sorted) {
  const int64_t num_choices = args.x.rows.dim(0) * args.shape.top_k;
  const int64_t width = args.gate.shape.outputs;
  const bool is_cut = width < args.down.shape.inputs;
  const int64_t first_column = is_cut ? Own(args.down.shape.inputs, args.width_unit).first : 0;
  const std::span<const int32_t> offsets = sorted.offsets;
  const int64_t first_row = offsets[0];
  const int64_t num_rows = offsets[static_cast<size_t>(args.gate.count)] - first_row;
  // fn(expert, first row, number of rows) of every expert that was chosen.
  const auto for_each_expert = [&](auto fn) {
    for (int64_t e = 0; e < args.gate.count; ++e) {
      const int64_t first = offsets[static_cast<size_t>(e)];
      const int64_t count = offsets[static_cast<size_t>(e) + 1] - first;
      if (count > 0) fn(e, first, count);
    }
  };
  size_t num_products = 0;
  for_each_expert([&](int64_t e, int64_t first, int64_t count) {
    const TensorView x = RowsOf(sorted.rows, first, count);
    const TensorView y = RowsOf(scratch_.expert_gate_up, first, count);
    scratch_.products[num_products++] = {
        .x = x, .w = MatrixOf(args.gate, e), .y = y.Columns(0, width)};
    scratch_.products[num_products++] = {
        .x = x, .w = MatrixOf(args.up, e), .y = y.Columns(width, width)};
  });
  cpu::Matmul(scratch_.products.first(num_products), executor_);
  cpu::SiluMul(
      {.gate_up = RowsOf(scratch_.expert_gate_up, first_row, num_rows).Columns(0, 2 * width),
       .y = RowsOf(scratch_.expert_activated, first_row, num_rows).Columns(first_column, width)},
      executor_);
  if (is_cut) Gather(scratch_.expert_activated.FirstRows(num_choices), args.width_unit);
  num_products = 0;
  for_each_expert([&](int64_t e, int64_t first, int64_t count) {
    scratch_.products[num_products++] = {
        .x = RowsOf(scratch_.expert_activated, first, count),
        .w = MatrixOf(args.down, e),
        .y = RowsOf(sorted.rows, first, count).Columns(0, args.down.shape.outputs)};
  });
  cpu::Matmul(scratch_.products.first(num_products), executor_);
}

// Rows are in the order of experts, so every rank has those of its own together.
void CpuOps::GatherExperts(const ExpertsArgs& args) {
  const TensorView& rows = scratch_.expert_rows;
  for (int32_t rank = 0; rank < ranks_->size(); ++rank) {
    const Share experts = ShareOf(args.shape.num_experts, 1, rank, ranks_->size());
    const int64_t first = scratch_.expert_offsets[static_cast<size_t>(experts.first)];
    const int64_t end = scratch_.expert_offsets[static_cast<size_t>(experts.end())];
    shares_[static_cast<size_t>(rank)] = {.first = first * rows.dim(1),
                                          .count = (end - first) * rows.dim(1)};
  }
  const int64_t num_choices = args.x.rows.dim(0) * args.shape.top_k;
  ranks_->AllGather(TensorView(rows.Address<float>(), {1, num_choices * rows.dim(1)}), shares_);
}

void CpuOps::Combine(const ExpertRows& rows, TensorView y) {
  cpu::Combine({.rows = rows.rows,
                .row_of = rows.row_of,
                .weights = rows.weights,
                .shared = rows.shared,
                .y = y},
               executor_);
}

void CpuOps::PickRows(const PickRowsArgs& args) {
  for (int64_t i = 0; i < std::ssize(args.rows); ++i) {
    const int32_t row = args.rows[static_cast<size_t>(i)];
    Require(row >= 0 && row < args.x.dim(0), "pick_rows.rows[{}]: expected 0..{}, got {}", i,
            args.x.dim(0) - 1, row);
    std::copy_n(args.x.Row<float>(row), args.x.dim(1), args.y.Row<float>(i));
  }
}

void CpuOps::CopyRows(const CopyRowsArgs& args) { cpu::CopyRows(args, executor_); }

Share CpuOps::Own(int64_t width, int64_t unit) const {
  return ShareOf(width, unit, ranks_->rank(), ranks_->size());
}

void CpuOps::Gather(TensorView whole, int64_t unit) {
  if (is_alone()) return;
  for (int32_t rank = 0; rank < ranks_->size(); ++rank) {
    shares_[static_cast<size_t>(rank)] = ShareOf(whole.dim(1), unit, rank, ranks_->size());
  }
  ranks_->AllGather(whole, shares_);
}

}  // namespace quire::cpu
