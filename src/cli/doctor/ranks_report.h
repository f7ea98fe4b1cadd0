// What ranks can be made of here: MPI between processes, NCCL between GPUs, and how the machine is laid out.
#ifndef QUIRE_CLI_DOCTOR_RANKS_REPORT_H_
#define QUIRE_CLI_DOCTOR_RANKS_REPORT_H_

#include <filesystem>

#include "cli/doctor/machine_report.h"

namespace quire::cli {

// Loads MPI's library and NCCL's, where they are, and starts neither. `root` is where /sys is.
RanksReport LookAtRanks(const std::filesystem::path& root = "/");

}  // namespace quire::cli

#endif  // QUIRE_CLI_DOCTOR_RANKS_REPORT_H_
