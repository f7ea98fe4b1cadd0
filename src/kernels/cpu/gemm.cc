#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/maths.h"
#include "base/narrow_float.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/gemm-inl.h"

#ifndef QUIRE_KERNELS_CPU_GEMM_TASKS_
#define QUIRE_KERNELS_CPU_GEMM_TASKS_
namespace quire {
namespace cpu {
namespace {

// A task is some panels times some rows of one product: what one thread does without looking up.
// Its rows of a chunk of x fit the first-level cache beside a widened chunk of weights, and its sums
// the second-level cache.
constexpr int64_t kTaskRows = 64;
constexpr int64_t kTaskSums = 512;  // rows times panels

struct Task {
  const MatmulArgs& product;
  int64_t first_panel, num_panels;
  int64_t first_row, num_rows;
};

int64_t NumPanels(const MatmulArgs& product) {
  return CeilDiv(product.w.shape().outputs, kPanelOutputs);
}
int64_t NumRowBlocks(const MatmulArgs& product) { return CeilDiv(product.x.dim(0), kTaskRows); }

// Panels of a task, if there should be `wanted`.
int64_t TaskPanels(const MatmulArgs& product, int64_t wanted) {
  const int64_t rows = std::clamp<int64_t>(product.x.dim(0), 1, kTaskRows);
  return std::clamp<int64_t>(wanted, 1, kTaskSums / rows);
}
int64_t NumTasks(const MatmulArgs& product, int64_t wanted) {
  return CeilDiv(NumPanels(product), TaskPanels(product, wanted)) * NumRowBlocks(product);
}
// Tasks that share panels come one after the other.
Task TaskAt(const MatmulArgs& product, int64_t wanted, int64_t index) {
  const int64_t panels = TaskPanels(product, wanted);
  const int64_t panel = index / NumRowBlocks(product) * panels;
  const int64_t row = index % NumRowBlocks(product) * kTaskRows;
  return {.product = product,
          .first_panel = panel,
          .num_panels = std::min(panels, NumPanels(product) - panel),
          .first_row = row,
          .num_rows = std::min(kTaskRows, product.x.dim(0) - row)};
}

}  // namespace
}  // namespace cpu
}  // namespace quire
#endif  // QUIRE_KERNELS_CPU_GEMM_TASKS_

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// Runs a task chunk by chunk of its inputs, with everything a chunk needs in the first two cache
// levels: x of the chunk in the order in which tiles read it, and weights widened once for all rows
// where that pays.
template <WeightFormat kFormat>
class TaskRun {
 public:
  explicit TaskRun(const Task& task)
      : task_(task),
        inputs_(task.product.w.shape().inputs),
        num_tiles_(CeilDiv(task.num_rows, int64_t{kMaxTileRows})) {}

  void Run() {
    std::fill_n(sums_, task_.num_panels * task_.num_rows * kPanelOutputs, 0.0f);
    if (task_.num_rows == 1) {
      RunRow();
    } else if (task_.num_rows <= kMostRowsInPlace) {
      RunRowsInPlace();
    } else {
      RunRows();
    }
    for (int64_t panel = 0; panel < task_.num_panels; ++panel) {
      for (int64_t row = 0; row < task_.num_rows; ++row) WriteRow(panel, row);
    }
  }

 private:
  // A single tile multiplies the weights as it widens them: with several, widening them once costs
  // less, though they are stored and loaded again.
  bool IsWidened() const { return kFormat != WeightFormat::kF32 && num_tiles_ > 1; }

  // How far ahead of its own reads such a product asks for more.
  static constexpr int64_t kAheadBytes = 1024;

  // A chunk as it lies in memory.
  struct Chunk {
    const uint8_t* elements;
    const float* scales;  // kFp8Block only, else null
  };

  Chunk ChunkAt(int64_t panel, int64_t k) const {
    const uint8_t* at = reinterpret_cast<const uint8_t*>(task_.product.w.data()) +
                        (task_.first_panel + panel) * PanelBytes(inputs_, kFormat) +
                        k / kChunkInputs * ChunkBytes(kChunkInputs, kFormat);
    if constexpr (kFormat != WeightFormat::kFp8Block) return {at, nullptr};
    return {at + ChunkBytes(0, kFormat), reinterpret_cast<const float*>(at)};
  }

  float* SumsAt(int64_t panel, int64_t row) {
    return sums_ + (panel * task_.num_rows + row) * kPanelOutputs;
  }

  const float* Row(int64_t row) const {
    return task_.product.x.template Row<float>(task_.first_row + row);
  }

  // A single row, panel after panel: the memory is read in order.
  void RunRow() {
    const int64_t whole = inputs_ / kChunkInputs * kChunkInputs;
    std::fill_n(std::copy_n(Row(0) + whole, inputs_ - whole, x_), kQuad, 0.0f);
    // Chunks without scales lie end to end, and are one run.
    const int64_t run =
        kFormat == WeightFormat::kFp8Block ? kChunkInputs : std::max(whole, kChunkInputs);
    for (int64_t panel = 0; panel < task_.num_panels; ++panel) {
      for (int64_t k = 0; k < whole; k += run) {
        const Chunk chunk = ChunkAt(panel, k);
        MultiplyRow<kFormat>(chunk.elements, chunk.scales, Row(0) + k, run, SumsAt(panel, 0));
      }
      if (whole == inputs_) continue;
      const Chunk rest = ChunkAt(panel, whole);
      MultiplyRow<kFormat>(rest.elements, rest.scales, x_, inputs_ - whole, SumsAt(panel, 0));
    }
  }

  // The same for a few rows, each input of which is one row's.
  void RunRowsInPlace() {
    const TileFunction tile = TileInPlaceOf<kFormat>(static_cast<int>(task_.num_rows));
    const int64_t run = kFormat == WeightFormat::kFp8Block ? kChunkInputs : inputs_;
    for (int64_t panel = 0; panel < task_.num_panels; ++panel) {
      for (int64_t k = 0; k < inputs_; k += run) {
        const Chunk chunk = ChunkAt(panel, k);
        tile({.w = chunk.elements,
              .scales = chunk.scales,
              .x = Row(0) + k,
              .x_stride = task_.product.x.stride(0),
              .inputs = std::min(run, inputs_ - k),
              .sums = SumsAt(panel, 0),
              .ahead = chunk.elements + kAheadBytes,
              .ahead_step = kPanelOutputs * WeightBytes(kFormat)});
      }
    }
  }

  // As many chunks of x as there is room for, then panel after panel: the longer a panel's weights
  // are read in order, the better the hardware guesses what comes next.
  void RunRows() {
    const int64_t span = kMaxTiles / num_tiles_ * kChunkInputs;
    for (int64_t k = 0; k < inputs_; k += span) {
      const int64_t end = std::min(k + span, inputs_);
      for (int64_t chunk = k; chunk < end; chunk += kChunkInputs) {
        PackRows(chunk, (chunk - k) / kChunkInputs);
      }
      for (int64_t panel = 0; panel < task_.num_panels; ++panel) {
        for (int64_t chunk = k; chunk < end; chunk += kChunkInputs) {
          RunChunk(panel, chunk, (chunk - k) / kChunkInputs);
        }
      }
    }
  }

  void RunChunk(int64_t panel, int64_t k, int64_t slot) {
    const int64_t inputs = std::min(kChunkInputs, inputs_ - k);
    const Chunk chunk = ChunkAt(panel, k);
    TileArgs args{.w = chunk.elements, .scales = chunk.scales, .inputs = inputs};
    if (!IsWidened()) {
      args.ahead = chunk.elements + kAheadBytes;
      args.ahead_step = kPanelOutputs * WeightBytes(kFormat);
      RunTiles<kFormat>(args, panel, slot);
    } else {
      WidenChunk<kFormat>(chunk.elements, inputs, w_);
      args.w = reinterpret_cast<const uint8_t*>(w_);
      args.ahead = chunk.elements + inputs * kPanelOutputs * WeightBytes(kFormat);
      args.ahead_step = CeilDiv(kPanelOutputs * WeightBytes(kFormat), NumPasses());
      args.ahead_pass_step = inputs * args.ahead_step;
      RunTiles<WeightFormat::kF32>(args, panel, slot);
    }
  }

  // Passes over a widened chunk that all tiles make together.
  int64_t NumPasses() const {
    int64_t passes = 0;
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      passes += TilePasses(TileRows(tile), WeightFormat::kF32);
    }
    return passes;
  }

  template <WeightFormat kElements>
  void RunTiles(TileArgs args, int64_t panel, int64_t slot) {
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      args.x = TileX(tile, slot);
      args.sums = SumsAt(panel, TileBegin(tile));
      TileOf<kElements>(TileRows(tile))(args);
      args.ahead += TilePasses(TileRows(tile), kElements) * args.ahead_pass_step;
    }
  }

  // Tiles share the rows evenly: nine are five and four, not eight and one.
  int64_t TileBegin(int64_t tile) const { return task_.num_rows * tile / num_tiles_; }
  int TileRows(int64_t tile) const {
    return static_cast<int>(TileBegin(tile + 1) - TileBegin(tile));
  }

  // The chunk of x at `slot` for one tile.
  float* TileX(int64_t tile, int64_t slot) {
    return x_ + (slot * num_tiles_ + tile) * kTileQuads * kQuadStep;
  }

  void PackRows(int64_t k, int64_t slot) {
    const int64_t inputs = std::min(kChunkInputs, inputs_ - k);
    for (int64_t tile = 0; tile < num_tiles_; ++tile) PackTile(tile, k, inputs, TileX(tile, slot));
  }

  // Transposes inputs [k, k + inputs) of a tile's rows into quads of rows. Rows that fill up the
  // last quad are copies of its first, and not used.
  void PackTile(int64_t tile, int64_t k, int64_t inputs, float* to) {
    const int64_t end = TileBegin(tile + 1);
    for (int64_t row = TileBegin(tile); row < end; row += kQuad, to += kQuadStep) {
      const auto from = [&](int64_t i) { return Row(row + i < end ? row + i : row) + k; };
      PackQuad(from(0), from(1), from(2), from(3), inputs, to);
    }
  }
  static HWY_INLINE void PackQuad(const float* a, const float* b, const float* c, const float* e,
                                  int64_t inputs, float* HWY_RESTRICT to) {
    const DF d;
    int64_t k = 0;
    for (; k + kLanes <= inputs; k += kLanes) {
      hn::StoreInterleaved4(hn::LoadU(d, a + k), hn::LoadU(d, b + k), hn::LoadU(d, c + k),
                            hn::LoadU(d, e + k), d, to + k * kQuad);
    }
    for (; k < inputs; ++k) {
      to[k * kQuad] = a[k];
      to[k * kQuad + 1] = b[k];
      to[k * kQuad + 2] = c[k];
      to[k * kQuad + 3] = e[k];
    }
  }

  void WriteRow(int64_t panel, int64_t row) {
    const int64_t first = (task_.first_panel + panel) * kPanelOutputs;
    const int64_t count = std::min(kPanelOutputs, task_.product.w.shape().outputs - first);
    const float* sums = SumsAt(panel, row);
    float* y = task_.product.y.template Row<float>(task_.first_row + row) + first;
    if (!task_.product.bias.empty()) {
      const float* bias = task_.product.bias.data() + first;
      for (int64_t i = 0; i < count; ++i) y[i] = sums[i] + bias[i];
    } else if (count == kPanelOutputs) {
      std::copy_n(sums, kPanelOutputs, y);  // no call
    } else {
      std::copy_n(sums, count, y);
    }
  }

  static constexpr int64_t kTileQuads = (kMaxTileRows + kQuad - 1) / kQuad;
  static constexpr int64_t kMaxTiles = (kTaskRows + kMaxTileRows - 1) / kMaxTileRows;

  const Task task_;
  const int64_t inputs_;
  const int64_t num_tiles_;
  alignas(64) float w_[kChunkInputs * kPanelOutputs];
  alignas(64) float x_[kMaxTiles * kTileQuads * kQuadStep];
  alignas(64) float sums_[kTaskSums * kPanelOutputs];
};

void RunTask(const Task& task) {
  switch (task.product.w.format()) {
    case WeightFormat::kF32:
      return TaskRun<WeightFormat::kF32>(task).Run();
    case WeightFormat::kF16:
      return TaskRun<WeightFormat::kF16>(task).Run();
    case WeightFormat::kBf16:
      return TaskRun<WeightFormat::kBf16>(task).Run();
    case WeightFormat::kFp8Block:
      return TaskRun<WeightFormat::kFp8Block>(task).Run();
  }
}

// Tasks [begin, end), counted over all products.
void RunTasks(std::span<const MatmulArgs> products, int64_t task_panels, int64_t begin,
              int64_t end) {
  for (const MatmulArgs& product : products) {
    const int64_t num_tasks = NumTasks(product, task_panels);
    for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, num_tasks); ++i) {
      RunTask(TaskAt(product, task_panels, i));
    }
    begin -= num_tasks;
    end -= num_tasks;
    if (end <= 0) return;
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

HWY_EXPORT(RunTasks);

// Ranges of tasks that are handed out, per thread: enough to even out what tasks and threads
// differ.
constexpr int64_t kRangesPerThread = 8;

// ---- Packing ----

template <class T>
T LoadElement(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Bytes from a chunk's first element to the first input of output `output` of the panel.
int64_t OutputOffset(int64_t output, WeightFormat format) {
  constexpr int64_t kHalf = kPanelOutputs / 2;
  const bool is_interleaved = format == WeightFormat::kBf16 || format == WeightFormat::kFp8Block;
  const int64_t index =
      is_interleaved ? output % kHalf * 2 + output / kHalf : output;  // the words of kernels/gemm.h
  return index * WeightBytes(format);
}
int64_t InputStep(WeightFormat format) { return kPanelOutputs * WeightBytes(format); }
int64_t ScalesBytes(WeightFormat format) { return ChunkBytes(0, format); }

float ScaleAt(const MatrixSource& source, int64_t n, int64_t k) {
  const int64_t row = (source.first_output + n) / source.block_outputs;
  const int64_t column = (source.first_input + k) / source.block_inputs;
  return LoadElement<float>(source.scales,
                            row * source.scale_stride + column * source.scale_input_stride);
}

// How an element of a source, a T, becomes one of the packed matrix.
template <class T>
struct Keep {
  using From = T;
  T operator()(T value, int64_t, int64_t) const { return value; }
};
struct KeepFp8 {
  using From = Fp8E4m3;
  Fp8E4m3 operator()(Fp8E4m3 value, int64_t n, int64_t k) const {
    Require(
        (value.bits & 0x7f) != 0x7f,
        "pack: expected no NaN to keep fp8_block, got one at output {}, input {}; f32 takes any", n,
        k);
    return value;
  }
};
struct WidenF16 {
  using From = F16;
  float operator()(From value, int64_t, int64_t) const { return ToFloat(value); }
};
struct WidenBf16 {
  using From = Bf16;
  float operator()(From value, int64_t, int64_t) const { return ToFloat(value); }
};
struct WidenFp8 {
  using From = Fp8E4m3;
  const MatrixSource& source;
  float operator()(From value, int64_t n, int64_t k) const {
    return ToFloat(value) * ScaleAt(source, n, k);
  }
};

// Inputs [begin, end) of output n, to a chunk's place for them.
template <class Convert>
void PackOutput(const MatrixSource& source, int64_t n, int64_t begin, int64_t end, int64_t step,
                Convert convert, std::byte* to) {
  for (int64_t k = begin; k < end; ++k, to += step) {
    const auto element =
        convert(LoadElement<typename Convert::From>(
                    source.data, n * source.output_stride + k * source.input_stride),
                n, k);
    std::memcpy(to, &element, sizeof(element));
  }
}

template <class Convert>
void PackPanel(const MatrixSource& source, WeightFormat format, int64_t panel, Convert convert,
               std::byte* to) {
  const int64_t first = panel * kPanelOutputs;
  const int64_t num_outputs = std::min(kPanelOutputs, source.shape.outputs - first);
  std::byte* const end_of_panel = to + PanelBytes(source.shape.inputs, format);
  if (num_outputs < kPanelOutputs) std::fill(to, end_of_panel, std::byte{0});
  for (int64_t begin = 0; begin < source.shape.inputs; begin += kChunkInputs) {
    const int64_t end = std::min(begin + kChunkInputs, source.shape.inputs);
    for (int64_t output = 0; output < num_outputs; ++output) {
      if (format == WeightFormat::kFp8Block) {
        const float scale = ScaleAt(source, first + output, begin);
        std::memcpy(to + output * 4, &scale, sizeof(scale));
      }
      PackOutput(source, first + output, begin, end, InputStep(format), convert,
                 to + ScalesBytes(format) + OutputOffset(output, format));
    }
    to += ChunkBytes(end - begin, format);
  }
  std::fill(to, end_of_panel, std::byte{0});
}

template <class Convert>
void PackPanels(const MatrixSource& source, WeightFormat format, Convert convert, std::byte* memory,
                Executor& executor) {
  executor.Run(CeilDiv(source.shape.outputs, kPanelOutputs), [&](int64_t panel) {
    PackPanel(source, format, panel, convert,
              memory + panel * PanelBytes(source.shape.inputs, format));
  });
}

// An element without its scale.
float UnpackElement(const std::byte* element, WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return LoadElement<float>(element, 0);
    case WeightFormat::kF16:
      return ToFloat(LoadElement<F16>(element, 0));
    case WeightFormat::kBf16:
      return ToFloat(LoadElement<Bf16>(element, 0));
    case WeightFormat::kFp8Block:
      return ToFloat(LoadElement<Fp8E4m3>(element, 0));
  }
  return 0;
}

}  // namespace

PackedMatrix Pack(const MatrixSource& source, WeightFormat format, std::span<std::byte> memory,
                  Executor& executor) {
  Validate(source, format);
  const PackedMatrix matrix = ViewPacked(source.shape, format, memory);
  const auto pack = [&](auto convert) {
    PackPanels(source, format, convert, memory.data(), executor);
  };
  const bool is_widened = format != source.format;
  switch (source.format) {
    case WeightFormat::kF32:
      pack(Keep<float>());
      break;
    case WeightFormat::kF16:
      is_widened ? pack(WidenF16()) : pack(Keep<uint16_t>());
      break;
    case WeightFormat::kBf16:
      is_widened ? pack(WidenBf16()) : pack(Keep<uint16_t>());
      break;
    case WeightFormat::kFp8Block:
      is_widened ? pack(WidenFp8{source}) : pack(KeepFp8());
      break;
  }
  return matrix;
}

void UnpackRow(const PackedMatrix& w, int64_t n, std::span<float> row) {
  const int64_t inputs = w.shape().inputs;
  Require(n >= 0 && n < w.shape().outputs, "unpack: expected an output of 0..{}, got {}",
          w.shape().outputs - 1, n);
  Require(std::ssize(row) == inputs, "unpack.row: expected {} values, got {}", inputs, row.size());
  const WeightFormat format = w.format();
  const int64_t output = n % kPanelOutputs;
  const std::byte* chunk = w.data() + n / kPanelOutputs * PanelBytes(inputs, format);
  for (int64_t begin = 0; begin < inputs; begin += kChunkInputs) {
    const int64_t end = std::min(begin + kChunkInputs, inputs);
    const std::byte* element = chunk + ScalesBytes(format) + OutputOffset(output, format);
    for (int64_t k = begin; k < end; ++k, element += InputStep(format)) {
      row[static_cast<size_t>(k)] = UnpackElement(element, format);
    }
    if (format == WeightFormat::kFp8Block) {
      const float scale = LoadElement<float>(chunk, output);
      for (int64_t k = begin; k < end; ++k) row[static_cast<size_t>(k)] *= scale;
    }
    chunk += ChunkBytes(end - begin, format);
  }
}

void Matmul(std::span<const MatmulArgs> products, Executor& executor) {
  int64_t cells = 0;
  for (const MatmulArgs& product : products) {
    Validate(product);
    cells += NumTasks(product, 1);
  }
  const int64_t max_ranges = executor.num_threads() * kRangesPerThread;
  const int64_t task_panels = cells / max_ranges;
  int64_t num_tasks = 0;
  for (const MatmulArgs& product : products) num_tasks += NumTasks(product, task_panels);
  const int64_t num_ranges = std::min(num_tasks, max_ranges);
  executor.Run(num_ranges, [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(RunTasks)
    (products, task_panels, num_tasks * i / num_ranges, num_tasks * (i + 1) / num_ranges);
  });
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
