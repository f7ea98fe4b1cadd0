#include "kernels/quantised_rows.h"

#include <cstddef>
#include <span>

#include "base/error.h"
#include "base/maths.h"
#include "base/units.h"
#include "device/arena.h"

namespace quire {
namespace {

int64_t BlocksOf(int64_t inputs) { return CeilDiv(inputs, int64_t{kScaleBlock}); }

}  // namespace

QuantisedRows TakeQuantisedRows(Carver& carver, int64_t rows, int64_t inputs) {
  Require(rows >= 0, "rows: expected 0 or more, got {}", rows);
  Require(inputs >= 1, "inputs: expected 1 or more, got {}", inputs);
  const int64_t blocks = BlocksOf(inputs), stride = blocks * kScaleBlock;
  const std::span<std::byte> codes = carver.TakeBytes(ByteOffset(rows * stride));
  const std::span<std::byte> scales = carver.TakeBytes(ByteOffset(rows * blocks * 4));
  if (carver.counting()) return {};
  return {.codes = reinterpret_cast<Fp8E4m3*>(codes.data()),
          .scales = reinterpret_cast<float*>(scales.data()),
          .rows = rows,
          .inputs = inputs,
          .code_stride = stride,
          .scale_stride = blocks};
}

QuantisedRows FirstRows(const QuantisedRows& memory, int64_t rows, int64_t inputs) {
  const int64_t blocks = BlocksOf(inputs);
  Require(rows >= 0 && rows <= memory.rows && inputs >= 1 && blocks <= memory.scale_stride,
          "quantised rows: expected at most {} rows of {} inputs, got {} of {}", memory.rows,
          memory.code_stride, rows, inputs);
  QuantisedRows part = memory;
  part.rows = rows;
  part.inputs = inputs;
  return part;
}

void RequireQuantised(const char* name, const QuantisedRows& rows, int64_t num_rows,
                      int64_t inputs) {
  Require(rows.rows == num_rows && rows.inputs == inputs,
          "{}: expected {} rows of {} inputs, got {} of {}", name, num_rows, inputs, rows.rows,
          rows.inputs);
  const int64_t blocks = BlocksOf(inputs);
  Require(rows.code_stride >= blocks * kScaleBlock && rows.code_stride % 16 == 0 &&
              reinterpret_cast<uintptr_t>(rows.codes) % 16 == 0,
          "{}: expected rows of at least {} codes, aligned to 16, got {}", name,
          blocks * kScaleBlock, rows.code_stride);
  Require(rows.scales != nullptr && rows.scale_stride >= blocks,
          "{}: expected rows of at least {} scales, got {}", name, blocks, rows.scale_stride);
}

}  // namespace quire
