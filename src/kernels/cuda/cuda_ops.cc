#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm_strips.h"
#include "kernels/cuda/gemm/gemv.h"
#include "kernels/cuda/gemm/row_rotation.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "kernels/cuda/moe/expert_gemm.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/moe/router.h"
#include "kernels/cuda/row_ops/pick_rows.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/select_keys/select_keys.h"
#include "kernels/cuda/store/store.h"
#include "kernels/cuda/weight_packer.h"

namespace quire::cuda {
namespace {

bool IsSameView(const ConstTensorView& a, const ConstTensorView& b) {
  return a.data() == b.data() && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1) &&
         a.stride(0) == b.stride(0);
}

// Whether one matrix lies behind the other as the next rows of it: no block of scales is of both, nor of both whole
// matrices where these are parts, since ranks join what one would.
bool IsBehind(const Weight& first, const Weight& second) {
  if (first.count != 1 || second.count != 1 || first.format != second.format ||
      first.shape.inputs != second.shape.inputs || second.data != first.data + first.step_bytes) {
    return false;
  }
  return first.format != WeightFormat::kFp8Block ||
         (first.shape.outputs % kScaleBlock == 0 && first.whole_outputs % kScaleBlock == 0 &&
          second.scales == first.scales + first.scale_step);
}

// The two as one product, if they are.
std::optional<ProductArgs> Joined(const ProductArgs& first, const ProductArgs& second) {
  const int64_t outputs = first.w.shape.outputs + second.w.shape.outputs;
  const bool are_one =
      IsSameView(first.x.rows, second.x.rows) && first.bias.empty() && second.bias.empty() &&
      IsBehind(first.w, second.w) && first.y.dtype() == second.y.dtype() &&
      first.y.stride(0) == second.y.stride(0) && first.y.stride(0) >= outputs &&
      second.y.data() == first.y.data() + first.w.shape.outputs * DTypeBytes(first.y.dtype());
  if (!are_one) return std::nullopt;
  ProductArgs both = first;
  both.w.shape.outputs = outputs;
  both.w.whole_outputs = first.w.whole_outputs + second.w.whole_outputs;
  both.w.step_bytes += second.w.step_bytes;
  both.w.scale_step += second.w.scale_step;
  both.y = TensorView(first.y.data(), first.y.dtype(), {first.y.dim(0), outputs}, first.y.side())
               .WithRowStride(first.y.stride(0));
  return both;
}

// fn(product) of all, neighbours joined where they can be.
template <class Fn>
void ForEachJoined(std::span<const ProductArgs> products, Fn fn) {
  for (size_t i = 0; i < products.size(); ++i) {
    ProductArgs product = products[i];
    while (i + 1 < products.size()) {
      const std::optional<ProductArgs> both = Joined(product, products[i + 1]);
      if (!both) break;
      product = *both;
      ++i;
    }
    fn(product);
  }
}

GemmArgs GemmOf(const ProductArgs& product) {
  return {.x = product.x.rows,
          .w = ViewOf(product.w),
          .y = product.y,
          .x_step = product.x_step,
          .y_step = product.y_step,
          .bias = product.bias.empty() ? nullptr : product.bias.data()};
}

// The logits that choose experts.
ProductArgs RouterOf(const ExpertsArgs& args, const OpScratch& scratch) {
  return {.x = args.x, .w = args.router, .y = scratch.route_logits.FirstRows(args.x.rows.dim(0))};
}

RopeArgs RopeOf(const RotateArgs& args) {
  return {.x = args.x,
          .cos = args.angles.cos,
          .sin = args.angles.sin,
          .pairs = args.angles.pairs,
          .y = args.y};
}

CombineArgs CombineOf(const ExpertRows& rows, TensorView y) {
  return {.rows = rows.rows,
          .row_of = rows.row_of,
          .weights = rows.weights,
          .shared = rows.shared,
          .y = y};
}

}  // namespace

OpScratch LayOutOps(const OpLimits& limits, Carver& carver) {
  const int64_t tokens = limits.num_tokens();
  const int32_t experts = limits.num_experts();
  OpScratch scratch;
  scratch.route_logits = carver.TakeTensor(DType::kF32, {tokens, experts});
  if (limits.expert_ranks == 1) {  // tokens of their own are routed by other ops
    int64_t floats = 0;            // the products' backend, which decides, is not known here
    for (const RouterOrder order : kRouterOrders) {
      const int64_t most = MostRouterTokens(tokens, experts, limits.hidden_size, order);
      floats = std::max(floats, RouterWorkspace(most, experts, limits.hidden_size, order));
    }
    scratch.router_parts = carver.Take<float>(floats);
  }
  scratch.route_weights = carver.Take<float>(limits.num_choices());
  // All ranks are at the same bucket.
  const int64_t choices = limits.num_choices() * limits.expert_ranks;
  const int64_t visiting = limits.expert_ranks > 1 ? tokens * limits.expert_ranks : 0;
  scratch.route_experts = carver.Take<int32_t>(choices);
  scratch.route_rows = carver.Take<int32_t>(choices);
  scratch.route_sort = carver.Take<int32_t>(experts > 0 ? SortWorkspace(choices, experts) : 0);
  scratch.expert_offsets = carver.Take<int32_t>(experts > 0 ? experts + 1 : 0);
  scratch.expert_tokens = carver.Take<int32_t>(choices);
  scratch.expert_activated = carver.TakeTensor(DType::kBf16, {choices, limits.expert_width});
  scratch.expert_out = carver.TakeTensor(DType::kBf16, {choices, limits.hidden_size});
  scratch.visiting = carver.TakeTensor(DType::kBf16, {visiting, limits.hidden_size});
  if (limits.has_block_scales) {
    scratch.codes =
        TakeQuantisedRows(carver, std::max(tokens, limits.logit_rows), limits.widest_input);
    if (limits.widest_side_input > 0) {
      scratch.side_codes = TakeQuantisedRows(carver, tokens, limits.widest_side_input);
    }
    if (experts > 0) {
      scratch.expert_codes = TakeQuantisedRows(carver, choices, limits.expert_width);
      scratch.visiting_codes = TakeQuantisedRows(carver, visiting, limits.hidden_size);
    }
  }
  scratch.attention =
      carver.TakeBytes(MlaAttentionWorkspace(limits.capacity, limits.work, limits.attention));
  if (limits.index.num_heads > 0) {
    scratch.selection =
        carver.TakeBytes(SelectKeysWorkspace(limits.capacity, limits.selection, limits.index));
  }
  if (limits.expanded_keys > TokenCount(0)) {
    scratch.expanded = LayOutExpandedKeys(limits.heads, limits.expanded_keys, carver);
  }
  return scratch;
}

CudaOps::CudaOps(const OpScratch& scratch, const OpDevice& device)
    : CudaOps(scratch, device, {.stream = &device.stream, .codes = scratch.codes}) {
  side_.reset(new CudaOps(
      scratch, device,
      {.stream = &device.branch.stream(), .gemms = GemmLane::kSide, .codes = scratch.side_codes}));
}

CudaOps::CudaOps(const OpScratch& scratch, const OpDevice& device, const Lane& lane)
    : scratch_(scratch),
      device_(device),
      lane_(lane),
      shares_(device.ranks == nullptr ? 0 : static_cast<size_t>(device.ranks->size())) {}

Ops& CudaOps::Fork() {
  if (!is_alone()) return *this;
  QUIRE_CHECK(side_ != nullptr, "a branch off a branch");
  device_.branch.Fork(*lane_.stream);
  return *side_;
}

void CudaOps::Join() {
  if (is_alone()) device_.branch.Join(*lane_.stream);
}

void CudaOps::Mark(ForwardPart part) {
  if (marks_ != nullptr) marks_->End(part, *lane_.stream);
}

void CudaOps::Embed(const EmbedArgs& args) {
  cuda::Embed({.table = ConstTensorView(reinterpret_cast<const Bf16*>(args.table.data),
                                        {args.table.shape.outputs, args.table.shape.inputs},
                                        MemorySide::kDevice),
               .tokens = args.tokens,
               .scale = args.scale,
               .hidden = args.hidden,
               .first_token = args.first_token,
               .is_part = !is_alone()},
              *lane_.stream, Launch());
  if (!is_alone()) AllReduceOr(args.hidden);
}

void CudaOps::GatherAngles(const StepAngles& angles) {
  GatherRope(angles, *lane_.stream, Launch());
}

void CudaOps::Norm(const RmsNormArgs& args) { RmsNorm(args, *lane_.stream, Launch()); }

void CudaOps::Add(const AddArgs& args) {
  if (const auto* rows = std::get_if<ConstTensorView>(&args.update)) {
    AddScaled({.x = *rows, .scale = args.scale, .y = args.hidden}, *lane_.stream, LiveLaunch());
  } else if (const auto* experts = std::get_if<ExpertRows>(&args.update)) {
    Combine(*experts, args.scratch);
    AddScaled({.x = args.scratch, .scale = args.scale, .y = args.hidden}, *lane_.stream,
              LiveLaunch());
  }
}

void CudaOps::AddNorm(const AddNormArgs& args) {
  AddRmsNormArgs norm{.hidden = args.add.hidden,
                      .update = args.add.scratch,
                      .scale = args.add.scale,
                      .weight = args.weight,
                      .eps = args.eps,
                      .normed = args.normed,
                      .codes = args.codes};
  if (const auto* rows = std::get_if<ConstTensorView>(&args.add.update)) {
    norm.update = *rows;
    AddRmsNorm(norm, *lane_.stream, LiveLaunch());
  } else if (const auto* experts = std::get_if<ExpertRows>(&args.add.update)) {
    CombineAddRmsNorm(CombineOf(*experts, args.add.scratch), norm, *lane_.stream, LiveLaunch());
  } else {
    RmsNorm({.x = norm.hidden,
             .weight = norm.weight,
             .eps = norm.eps,
             .y = norm.normed,
             .codes = norm.codes},
            *lane_.stream, LiveLaunch());
  }
}

void CudaOps::Matmul(std::span<const ProductArgs> products) {
  ConstTensorView quantised;
  ForEachJoined(products, [&](const ProductArgs& product) {
    GemmArgs gemm = GemmOf(product);
    if (gemm.w.format == WeightFormat::kFp8Block) {
      gemm.x_codes = product.x.codes;
      if (gemm.x_codes.empty()) {
        gemm.x_codes = FirstRows(lane_.codes, gemm.x.dim(0), gemm.x.dim(1));
        if (quantised.empty() || !IsSameView(quantised, gemm.x)) {
          QuantiseRows({.x = gemm.x, .to = gemm.x_codes}, *lane_.stream);
          quantised = gemm.x;
        }
      }
      gemm.x = {};
    }
    device_.gemms.Gemm(gemm, *lane_.stream, lane_.gemms);
  });
}

void CudaOps::WriteKv(const WriteKvArgs& args) {
  RopeStore({.store = args.store,
             .slots = args.slots,
             .positions = args.angles.positions,
             .kv = args.kv,
             .norm_weight = args.norm_weight,
             .eps = args.eps,
             .cos = args.angles.table_cos,
             .sin = args.angles.table_sin,
             .pairs = args.angles.pairs},
            *lane_.stream, device_.status);
}

void CudaOps::Rotate(const RotateArgs& args) { Rope(RopeOf(args), *lane_.stream, Launch()); }

void CudaOps::MatmulAndRotate(const ProductArgs& product, const RotateArgs& rotate) {
  const GemmArgs gemm = GemmOf(product);
  const RopeArgs rope = RopeOf(rotate);
  const GemmKernel kernel = device_.gemms.Choose(gemm);
  if (kernel == GemmKernel::kGemv && GemvRotates(gemm, rope)) {
    return GemvAndRope(gemm, rope, *lane_.stream);
  }
  if (kernel == GemmKernel::kStrips && RotatesOneRow(rope)) {
    return StripGemmAndRope(gemm, rope, *lane_.stream);
  }
  Ops::MatmulAndRotate(product, rotate);
}

void CudaOps::Attend(const MlaAttentionArgs& args) {
  MlaAttentionArgs with_workspace = args;
  with_workspace.workspace = scratch_.attention;
  MlaAttention(with_workspace, *lane_.stream, device_.status);
}

void CudaOps::AttendExpanded(const AttendExpandedArgs& args) {
  cuda::AttendExpanded(args, scratch_.expanded, *lane_.stream, device_.status);
}

void CudaOps::WriteIndexKeys(const WriteIndexKeysArgs& args) {
  cuda::WriteIndexKeys(args, *lane_.stream, device_.status);
}

void CudaOps::SelectKeys(const SelectKeysArgs& args) {
  SelectKeysArgs with_workspace = args;
  with_workspace.workspace = scratch_.selection;
  cuda::SelectKeys(with_workspace, *lane_.stream, device_.status);
}

void CudaOps::AttendChosen(const SparseAttentionArgs& args) {
  SparseAttentionArgs with_workspace = args;
  with_workspace.workspace = scratch_.attention;
  SparseAttention(with_workspace, *lane_.stream, device_.status);
}

void CudaOps::SiluMul(const SiluMulArgs& args) { cuda::SiluMul(args, *lane_.stream, Launch()); }

void CudaOps::GateUp(const GateUpArgs& args) {
  const GemmArgs gemm{.x = args.x.rows, .w = ViewOf(args.gate), .up = ViewOf(args.up), .y = args.y};
  if (!device_.gemms.TakesGate(gemm)) return Ops::GateUp(args);
  device_.gemms.Gemm(gemm, *lane_.stream, lane_.gemms);
  // Down alone has scales.
  if (!args.codes.empty()) QuantiseRows({.x = args.y, .to = args.codes}, *lane_.stream);
}

// Of several ranks, with experts cut by their width, each has some of the columns: rows of those alone.
TensorView CudaOps::ExpertOut(const ExpertsArgs& args, int64_t num_choices) const {
  const TensorView& out = scratch_.expert_out;
  return TensorView(out.data(), out.dtype(), {num_choices, args.down.shape.outputs}, out.side());
}

ExpertRows CudaOps::Experts(const ExpertsArgs& args) {
  const auto own = static_cast<size_t>(args.x.rows.dim(0) * args.shape.top_k);
  const size_t first = has_own_tokens() ? own * static_cast<size_t>(device_.ranks->rank()) : 0;
  const size_t all = has_own_tokens() ? own * static_cast<size_t>(device_.ranks->size()) : own;
  const RouteArgs route{.shape = args.shape,
                        .logits = scratch_.route_logits.FirstRows(args.x.rows.dim(0)),
                        .bias = args.router_bias,
                        .experts = scratch_.route_experts.subspan(first, own),
                        .weights = scratch_.route_weights.first(own)};
  ExpertsArgs of_all = args;
  of_all.x = Choose(args, route, all);
  const auto num_choices = static_cast<int64_t>(all);
  RunExperts(of_all, num_choices);
  return {.rows = ExpertOut(args, num_choices),
          .row_of = scratch_.route_rows.subspan(first, own),
          .weights = scratch_.route_weights.first(own)};
}

ProductInput CudaOps::Choose(const ExpertsArgs& args, const RouteArgs& route, size_t all) {
  SortByExpertArgs sort{.num_experts = args.shape.num_experts,
                        .top_k = args.shape.top_k,
                        .experts = scratch_.route_experts.first(all),
                        .offsets = scratch_.expert_offsets,
                        .row_of = scratch_.route_rows.first(all),
                        .token_of = scratch_.expert_tokens.first(all),
                        .used = args.used,
                        .workspace = scratch_.route_sort,
                        .live = device_.live,
                        .status = device_.status};
  const WeightView router = ViewOf(args.router);
  const RouterOrder order = device_.gemms.is_exact() ? RouterOrder::kTiles : RouterOrder::kOwn;
  if (!has_own_tokens() && RouterTakes(args.x.rows, router, order) &&
      RouterPays(args.x.rows.dim(0), router.shape.outputs, router.shape.inputs, order)) {
    QUIRE_CHECK(lane_.gemms == GemmLane::kMain, "a router on a branch");
    RouteTokens({.x = args.x.rows,
                 .w = router,
                 .route = route,
                 .sort = sort,
                 .logits = scratch_.router_parts,
                 .arrived = device_.router_arrived,
                 .order = order},
                *lane_.stream);
    return args.x;
  }
  Matmul(RouterOf(args, scratch_));
  if (!has_own_tokens()) {
    RouteAndSort(route, sort, *lane_.stream);
    return args.x;
  }
  Route(route, device_.live, *lane_.stream);
  const ConstTensorView x = BringTokens(args.x.rows, route.experts);
  sort.live = {};  // padding of all ranks has no experts by now
  SortByExpert(sort, *lane_.stream);
  return x;
}

// Every rank gets all tokens, padding among them, and what was chosen for each: which ranks want a row is known
// on the device alone, and a recorded step always sends the same bytes. So all sort the same choices alike.
ConstTensorView CudaOps::BringTokens(ConstTensorView x, std::span<int32_t> experts) {
  const int64_t rank = device_.ranks->rank(), size = device_.ranks->size();
  const TensorView& all = scratch_.visiting;
  const int64_t width = x.dim(1), part = x.dim(0) * width;
  std::byte* const own = all.data() + rank * part * DTypeBytes(all.dtype());
  CopyRows({.x = x, .y = TensorView(own, all.dtype(), {x.dim(0), width}, all.side())});
  AllGather(TensorView(all.data(), all.dtype(), {1, size * part}, all.side()), part);
  const int64_t choices = std::ssize(experts);
  DropPadding(experts, static_cast<int32_t>(choices / x.dim(0)), device_.live, *lane_.stream);
  auto* const bits = reinterpret_cast<float*>(scratch_.route_experts.data());  // only copied
  AllGather(TensorView(bits, {1, size * choices}, MemorySide::kDevice), choices);
  return all.FirstRows(size * x.dim(0));
}

// expert_out = down(silu(gate(x)) * up(x)), each by its own expert, x the row of the token.
void CudaOps::RunExperts(const ExpertsArgs& args, int64_t num_choices) {
  // With x as e4m3 where w is: x.codes, or made in `memory`.
  const auto product = [&](ExpertGemmArgs gemm, const ProductInput& x,
                           const QuantisedRows& memory) {
    gemm.x = x.rows;
    gemm.offsets = scratch_.expert_offsets.data() + args.first_expert;
    gemm.status = device_.status;
    gemm.exact = device_.gemms.is_exact();
    gemm.all_experts = args.shape.num_experts;
    if (gemm.w.format == WeightFormat::kFp8Block) {
      gemm.x_codes = x.codes;
      if (x.codes.empty()) {
        gemm.x_codes = FirstRows(memory, x.rows.dim(0), x.rows.dim(1));
        QuantiseRows({.x = x.rows, .to = gemm.x_codes}, *lane_.stream);
      }
      gemm.x = {};
    }
    ExpertGemm(gemm, *lane_.stream);
  };
  const TensorView activated = scratch_.expert_activated.FirstRows(num_choices);
  const bool is_cut = args.gate.shape.outputs < args.down.shape.inputs;
  const Share own = is_cut ? ShareOf(args.down.shape.inputs, args.width_unit, device_.ranks->rank(),
                                     device_.ranks->size())
                           : Share{.first = 0, .count = args.gate.shape.outputs};
  product({.w = ViewOf(args.gate),
           .up = ViewOf(args.up),
           .rows = scratch_.expert_tokens.first(static_cast<size_t>(num_choices)),
           .y = activated.Columns(own.first, own.count)},
          args.x, has_own_tokens() ? scratch_.visiting_codes : lane_.codes);
  if (is_cut) Gather(activated, args.width_unit);
  const TensorView out = ExpertOut(args, num_choices);
  product({.w = ViewOf(args.down), .y = out, .routing = RoutingAge::kOld}, activated,
          scratch_.expert_codes);
  if (args.gate.count < args.shape.num_experts) GatherExperts(args, out);
}

// Rows are in the order of experts, so every rank has those of its own together; where they begin is known
// on the device alone. So the others' become 0 here, and all are brought together whole: a recorded step
// sends the same bytes whatever was chosen.
void CudaOps::GatherExperts(const ExpertsArgs& args, TensorView rows) {
  const int32_t* const offsets = scratch_.expert_offsets.data() + args.first_expert;
  ClearOtherRows(rows, offsets, offsets + args.gate.count, *lane_.stream);
  AllReduceOr(rows);
}

void CudaOps::AllReduceOr(const TensorView& rows) {
  const int64_t bytes = rows.dim(0) * rows.dim(1) * DTypeBytes(rows.dtype());
  QUIRE_CHECK(rows.stride(0) == rows.dim(1) && bytes % 4 == 0, "{} bytes of rows", bytes);
  device_.ranks->AllReduceOr(
      {reinterpret_cast<uint32_t*>(rows.data()), static_cast<size_t>(bytes / 4)}, *lane_.stream);
}

void CudaOps::Gather(TensorView whole, int64_t unit) {
  if (!is_alone()) AllGather(whole, unit);
}

void CudaOps::AllGather(TensorView whole, int64_t unit) {
  const int32_t size = device_.ranks->size();
  for (int32_t rank = 0; rank < size; ++rank) {
    shares_[static_cast<size_t>(rank)] = ShareOf(whole.dim(1), unit, rank, size);
  }
  device_.ranks->AllGather(whole, shares_, *lane_.stream);
}

void CudaOps::Combine(const ExpertRows& rows, TensorView y) {
  cuda::Combine(CombineOf(rows, y), *lane_.stream, LiveLaunch());
}

void CudaOps::PickRows(const PickRowsArgs& args) {
  cuda::PickRows(args, *lane_.stream, device_.status);
}

void CudaOps::CopyRows(const CopyRowsArgs& args) { cuda::CopyRows(args, *lane_.stream); }

void ProductPlanningOps::Matmul(std::span<const ProductArgs> products) {
  ForEachJoined(products, [&](const ProductArgs& product) {
    const GemmArgs gemm = GemmOf(product);
    if (gemms_.Choose(gemm) == GemmKernel::kCublasLt) gemms_.Plan(ShapeOf(gemm));
  });
}

ExpertRows ProductPlanningOps::Experts(const ExpertsArgs& args) {
  Matmul(RouterOf(args, scratch_));
  return {.rows = scratch_.expert_out.FirstRows(args.x.rows.dim(0) * args.shape.top_k)};
}

}  // namespace quire::cuda
