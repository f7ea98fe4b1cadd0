// Rows of activations as e4m3, for products of codes with weights that have block scales: a device's.
#ifndef QUIRE_KERNELS_QUANTISED_ROWS_H_
#define QUIRE_KERNELS_QUANTISED_ROWS_H_

#include <cstdint>

#include "base/narrow_float.h"

namespace quire {

class Carver;

// Inputs of a row that share a scale, and outputs and inputs of a matrix.
inline constexpr int32_t kScaleBlock = 128;

// Rows of x as e4m3, with a scale for every 128 inputs of a row: x = scale * code.
struct QuantisedRows {
  Fp8E4m3* codes = nullptr;  // [rows, code_stride]: inputs, then zeros up to a multiple of 128
  float* scales = nullptr;   // [rows, scale_stride]
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t code_stride = 0;
  int64_t scale_stride = 0;

  bool empty() const { return codes == nullptr; }
};

// Takes the memory of up to `rows` rows from `carver`; empty from one that only counts.
QuantisedRows TakeQuantisedRows(Carver& carver, int64_t rows, int64_t inputs);
// The same memory for the first `rows` rows of `inputs` inputs; throws Error(kInvalidArgument) if it
// was taken for fewer or narrower ones.
QuantisedRows FirstRows(const QuantisedRows& memory, int64_t rows, int64_t inputs);

// Throws Error(kInvalidArgument) naming `name` unless these are so many rows of so many inputs.
void RequireQuantised(const char* name, const QuantisedRows& rows, int64_t num_rows,
                      int64_t inputs);

}  // namespace quire

#endif  // QUIRE_KERNELS_QUANTISED_ROWS_H_
