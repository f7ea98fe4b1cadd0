// Whether there is a CUDA driver, and what it sees.
#ifndef QUIRE_CLI_DOCTOR_CUDA_DRIVER_H_
#define QUIRE_CLI_DOCTOR_CUDA_DRIVER_H_

#include "cli/doctor/machine_report.h"

namespace quire::cli {

// Loads libcuda.so.1, which comes with NVIDIA's driver, while it asks.
CudaDriver AskCudaDriver();

}  // namespace quire::cli

#endif  // QUIRE_CLI_DOCTOR_CUDA_DRIVER_H_
