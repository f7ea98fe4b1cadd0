// Memory for codes of rows, in tests on the device.
#ifndef QUIRE_KERNELS_CUDA_TEST_CODES_H_
#define QUIRE_KERNELS_CUDA_TEST_CODES_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "kernels/quantised_rows.h"

namespace quire::cuda {

class CodeMemory {
 public:
  // With `fill` in every byte: rows are judged by what kernels write, not by what was there.
  CodeMemory(int64_t num_rows, int64_t inputs, unsigned char fill)
      : memory_("codes of a test", Bytes(num_rows, inputs)) {
    Carver carver = DeviceCarver(memory_);
    rows_ = TakeQuantisedRows(carver, num_rows, inputs);
    FillAndWait(memory_.bytes(), fill, "codes of a test");
  }

  const QuantisedRows& rows() const { return rows_; }
  // All of the memory, once `stream` has done what it was given.
  std::vector<uint8_t> All(const Stream& stream) const {
    stream.Synchronize();
    std::vector<uint8_t> bytes(memory_.bytes().size());
    CopyAndWait(bytes.data(), memory_.data(), bytes.size(), "codes of a test");
    return bytes;
  }

 private:
  static ByteOffset Bytes(int64_t num_rows, int64_t inputs) {
    Carver counting;
    TakeQuantisedRows(counting, num_rows, inputs);
    return counting.used();
  }

  DeviceBuffer memory_;
  QuantisedRows rows_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_TEST_CODES_H_
