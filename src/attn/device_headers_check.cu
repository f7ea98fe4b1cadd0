// Compiled, never run: maps the functions of the host/device headers over threads, so that what
// nvcc cannot compile for a device is noticed before a kernel needs it.
#include <cstdint>

#include "attn/kv_layout.h"
#include "attn/page_ranges.h"
#include "attn/plan_elements.h"
#include "base/maths.h"
#include "base/narrow_float.h"
#include "base/units.h"

namespace quire {

__device__ int32_t ThreadIndex() {
  return static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void MapTiles(const WorkShape shape, TokenCount q_len, TokenCount kv_len,
                         QueryTile* tiles, int64_t* costs) {
  const int32_t i = ThreadIndex();
  if (i >= NumQueryTiles(q_len, shape)) return;
  const TokenCount begin = shape.query_tile * i;
  const TokenCount count = Min(shape.query_tile, q_len - begin);
  tiles[i] = {.seq = 0,
              .q_count = static_cast<int32_t>(count.raw()),
              .q_begin = begin,
              .kv_end = CausalVisible(q_len, kv_len, begin + count - TokenCount(1))};
  costs[i] = TileCost(tiles[i], shape);
}

__global__ void MapWorkers(const WorkShape shape, const QueryTile* tiles,
                           const int64_t* cost_before, int32_t num_tiles, WorkerStart* starts,
                           int32_t* partials) {
  const int32_t worker = ThreadIndex();
  if (worker >= shape.num_workers) return;
  const WorkerStart begin = WorkerStartAt(worker, tiles, cost_before, num_tiles, shape);
  const WorkerStart end = WorkerStartAt(worker + 1, tiles, cost_before, num_tiles, shape);
  starts[worker] = begin;
  partials[worker] = NumPartials(begin, end, tiles, shape);
}

// merges[worker] is the merge of the tile that this worker is the first to begin within, if any.
__global__ void MapMerges(const WorkShape shape, const QueryTile* tiles, const WorkerStart* starts,
                          Merge* merges) {
  const int32_t worker = ThreadIndex();
  if (worker < 1 || worker > shape.num_workers) return;
  if (IsFirstCut(starts[worker], starts[worker - 1])) {
    merges[worker] = MergeAt(worker, starts, tiles, shape);
  }
}

// One CTA per row, one thread per cell of it.
__global__ void MapPageRanges(const PageGrid grid, const PageCount* row_pages, PageRange* ranges) {
  const int64_t cells = grid.CellsPerRow();
  if (threadIdx.x >= cells) return;
  ranges[blockIdx.x * cells + threadIdx.x] = FillRange(grid, row_pages[blockIdx.x], threadIdx.x);
}

// One CTA per token, one thread per value of its row: bf16 to the store's place, and e4m3 beside
// it.
__global__ void MapRow(const KvPart part, PageSize page_size, const Slot* slots,
                       ByteOffset page_bytes, const float* values, uint8_t* pool, Fp8E4m3* fp8) {
  const Slot slot = slots[blockIdx.x];
  const int32_t column = static_cast<int32_t>(threadIdx.x);
  const ByteOffset at = page_bytes * page_size.PageOf(slot).raw() +
                        ByteOffset(part.OffsetOf(page_size.OffsetOf(slot), column * 2));
  const int32_t stride = RoundUp(part.row_bytes / 2, 16);
  const float value = values[int64_t{stride} * blockIdx.x + column];
  *reinterpret_cast<Bf16*>(pool + at.raw()) = ToBf16(value);
  fp8[int64_t{stride} * blockIdx.x + column] = ToFp8E4m3(ToFloat(ToBf16(value)));
}

}  // namespace quire
