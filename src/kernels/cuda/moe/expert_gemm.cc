#include "kernels/cuda/moe/expert_gemm.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/moe/expert_gemv.h"

namespace quire::cuda {
namespace {

// Of the tile kernel row tiles are one dimension of a grid; the other kernels have as many CTAs whatever there are.
constexpr int64_t kMaxRowTiles = 65535;

int64_t XRowsOf(const ExpertGemmArgs& args) {
  if (!args.x_codes.empty()) return args.x_codes.rows;
  return args.x.rank() == 2 ? args.x.dim(0) : 0;
}

void RequireTiles(int64_t rows, int64_t num_experts, int64_t tile_rows) {
  const int64_t tiles = MaxRowTiles(rows, num_experts, tile_rows);
  Require(tiles <= kMaxRowTiles, "rows: expected at most {} tiles of {} rows, got {} ({} rows)",
          kMaxRowTiles, tile_rows, tiles, rows);
}

TileParams ParamsOf(const ExpertGemmArgs& args) {
  TileParams p = MakeTileParams(args.x, args.x_codes, args.w, args.y);
  if (!args.up.empty()) {
    p.gated = true;
    p.w[1] = args.up.data;
    p.w_scales[1] = args.up.scales;
  }
  p.offsets = args.offsets;
  p.num_experts = static_cast<int32_t>(args.w.count);
  p.offsets_are_old = args.routing == RoutingAge::kOld;
  if (!args.rows.empty()) {
    p.x_index = args.rows.data();
    p.x_rows = static_cast<int32_t>(XRowsOf(args));
  }
  p.status = args.status;
  return p;
}

ExpertKernel ChooseKernel(const ExpertGemmArgs& args, const TileParams& params) {
  const bool is_few =
      !args.exact && args.w.format == WeightFormat::kBf16 && ExpertGemvTakes(params);
  return is_few ? ExpertKernel::kGemv : ExpertKernel::kTiles;
}

}  // namespace

void Validate(const ExpertGemmArgs& args) {
  RequireWeights("w", args.w);
  Require(args.w.count <= kMaxExperts, "w.count: expected at most {} experts, got {}", kMaxExperts,
          args.w.count);
  Require(args.all_experts == 0 || args.all_experts >= args.w.count,
          "all_experts: expected 0 or at least w's {}, got {}", args.w.count, args.all_experts);
  if (!args.up.empty()) RequireSameWeights(args.up, args.w);
  const int64_t rows = RequireY(args.y, args.w);
  const int64_t x_rows = args.rows.empty() ? rows : XRowsOf(args);
  // As in a product of the first expert.
  WeightView first = args.w;
  first.count = 1;
  RequireX(args.x, args.x_codes, x_rows, first);
  Require(args.offsets != nullptr, "offsets: expected {} of them, got none", args.w.count + 1);
  if (args.rows.empty()) return;
  Require(std::ssize(args.rows) == rows, "rows: expected {} of them, got {}", rows,
          args.rows.size());
  Require(x_rows >= 1, "x: expected rows for the {} of y, got none", rows);
}

ExpertKernel ChooseExpertKernel(const ExpertGemmArgs& args) {
  return ChooseKernel(args, ParamsOf(args));
}

int64_t RowsOfAnExpert(const ExpertGemmArgs& args) {
  return CeilDiv(args.y.dim(0), std::max(args.all_experts, args.w.count));
}

void ExpertGemm(const ExpertGemmArgs& args, const Stream& stream, std::optional<TileSize> size) {
  Validate(args);
  const int64_t rows = args.y.dim(0);
  if (rows == 0) return;
  const TileParams p = ParamsOf(args);
  if (!size && ChooseKernel(args, p) == ExpertKernel::kGemv) {
    return LaunchExpertGemv(p, args.routing, stream);
  }
  const TileChoice tile = ChooseTile(p, args.x_codes, args.w, RowsOfAnExpert(args), size);
  RequireTiles(rows, args.w.count, ExtentOf(tile.size).rows);
  LaunchTiles(p, tile, stream);
}

}  // namespace quire::cuda
