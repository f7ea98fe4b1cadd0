#include "kernels/cpu/store.h"

#include <algorithm>
#include <cstring>

#include "base/maths.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/store.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/row_codec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// `values` floats of a view's row, widened if need be.
void ReadViewRow(const ConstTensorView& view, int64_t row, float* to) {
  const int32_t n = static_cast<int32_t>(view.dim(1));
  if (view.dtype() == DType::kF32) {
    std::memcpy(to, view.Row<float>(row), static_cast<size_t>(n) * 4);
  } else {
    WidenBf16(reinterpret_cast<const uint8_t*>(view.Row<Bf16>(row)), 0, n, {.base = to});
  }
}

void WriteViewRow(const float* from, const TensorView& view, int64_t row) {
  const int32_t n = static_cast<int32_t>(view.dim(1));
  if (view.dtype() == DType::kF32) {
    std::memcpy(view.Row<float>(row), from, static_cast<size_t>(n) * 4);
  } else {
    NarrowBf16(from, n, reinterpret_cast<uint8_t*>(view.Row<Bf16>(row)));
  }
}

void WriteRows(const StoreWriteArgs& args, int64_t begin, int64_t end, float* row) {
  const KvLayout& layout = args.store.layout();
  for (int64_t i = begin; i < end; ++i) {
    const Slot slot = args.slots[static_cast<size_t>(i)];
    const PageId page = layout.page_size().PageOf(slot);
    if (page == kScratchPage) continue;
    ReadViewRow(args.latent, i, row);
    if (layout.dims().rope_dim > 0) ReadViewRow(args.rope, i, row + layout.dims().latent_dim);
    EncodeRow(layout, row, args.store.Page(page), layout.page_size().OffsetOf(slot));
  }
}

void GatherRows(const StoreGatherArgs& args, int64_t begin, int64_t end, float* row) {
  const KvLayout& layout = args.store.read_layout();
  for (int64_t i = begin; i < end; ++i) {
    const Slot slot = args.slots[static_cast<size_t>(i)];
    DecodeRow(layout, args.store.Page(layout.page_size().PageOf(slot)),
              layout.page_size().OffsetOf(slot), {.base = row});
    WriteViewRow(row, args.latent, i);
    if (layout.dims().rope_dim > 0) WriteViewRow(row + layout.dims().latent_dim, args.rope, i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(WriteRows);
HWY_EXPORT(GatherRows);

// Rows per parallel cell: some 20 us of work, well above the cost of handing a cell out.
constexpr int64_t kRowsPerCell = 32;

// Calls fn(begin, end) over [0, num_rows) in cells.
template <class Fn>
void ForRowCells(int64_t num_rows, Executor& executor, Fn fn) {
  executor.Run(CeilDiv(num_rows, kRowsPerCell), [&](int64_t cell) {
    const int64_t begin = cell * kRowsPerCell;
    fn(begin, std::min(num_rows, begin + kRowsPerCell));
  });
}

// Copies a row between a page and its packed form, chunk by chunk.
template <class Copy>
void ForEachChunk(const KvLayout& layout, int32_t row, Copy copy) {
  int32_t packed = 0;
  for (const KvPart& part : layout.parts()) {
    for (int32_t byte = 0; byte < part.row_bytes; byte += part.chunk_bytes) {
      copy(part.OffsetOf(row, byte), packed + byte, static_cast<size_t>(part.chunk_bytes));
    }
    packed += part.row_bytes;
  }
}

}  // namespace

void StoreWrite(const StoreWriteArgs& args, Executor& executor) {
  Validate(args);
  ForRowCells(static_cast<int64_t>(args.slots.size()), executor, [&](int64_t begin, int64_t end) {
    float row[kMaxRowValues];
    HWY_DYNAMIC_DISPATCH(WriteRows)(args, begin, end, row);
  });
}

void StoreGather(const StoreGatherArgs& args, Executor& executor) {
  Validate(args);
  ForRowCells(static_cast<int64_t>(args.slots.size()), executor, [&](int64_t begin, int64_t end) {
    float row[kMaxRowValues];
    HWY_DYNAMIC_DISPATCH(GatherRows)(args, begin, end, row);
  });
}

void StoreMove(const StoreMoveArgs& args, Executor& executor) {
  Validate(args);
  const KvLayout& layout = args.store.layout();
  const PageSize page_size = layout.page_size();
  const int64_t num_rows = static_cast<int64_t>(args.from.size());
  auto packed_row = [&](int64_t i) {
    return args.workspace.data() + i * layout.packed_row_bytes();
  };
  ForRowCells(num_rows, executor, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Slot slot = args.from[static_cast<size_t>(i)];
      const std::byte* page = args.store.Page(page_size.PageOf(slot));
      ForEachChunk(layout, page_size.OffsetOf(slot),
                   [&](int32_t in_page, int32_t packed, size_t n) {
                     std::memcpy(packed_row(i) + packed, page + in_page, n);
                   });
    }
  });
  ForRowCells(num_rows, executor, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Slot slot = args.to[static_cast<size_t>(i)];
      if (page_size.PageOf(slot) == kScratchPage) continue;
      std::byte* page = args.store.Page(page_size.PageOf(slot));
      ForEachChunk(layout, page_size.OffsetOf(slot),
                   [&](int32_t in_page, int32_t packed, size_t n) {
                     std::memcpy(page + in_page, packed_row(i) + packed, n);
                   });
    }
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
