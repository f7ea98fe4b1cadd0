// What tests of the emulated GPU run kernels with.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_MACHINE_TESTING_H_
#define QUIRE_TESTING_CUDA_EMULATOR_MACHINE_TESTING_H_

#include <functional>
#include <stdexcept>
#include <string>

#include "kernels/cuda/ptx/panels.cuh"
#include "testing/cuda/emulator/machine.h"

namespace quire::cuda {

using emulator::Grid;
using emulator::RunGrid;

inline constexpr Grid kWarpgroupGrid = {.ctas = 1, .threads = kWarpgroup, .shared_bytes = 64 << 10};

// What RunGrid says of a kernel that is wrong; empty if nothing.
inline std::string MisuseOf(const Grid& grid, const std::function<void()>& kernel) {
  try {
    RunGrid(grid, kernel);
  } catch (const std::runtime_error& misuse) {
    return misuse.what();
  }
  return {};
}

}  // namespace quire::cuda

#endif  // QUIRE_TESTING_CUDA_EMULATOR_MACHINE_TESTING_H_
