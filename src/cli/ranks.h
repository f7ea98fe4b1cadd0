// Ranks that mpirun or Slurm has started, of a command that runs a model.
#ifndef QUIRE_CLI_RANKS_H_
#define QUIRE_CLI_RANKS_H_

#include <memory>
#include <string>

#include "cli/flags.h"

namespace quire::cli {

// Before anything else that such a command does. Alone, nothing. Of several processes rank 0 goes on, with
// flags.ranks; in the others this is the whole command, and throws Exit at its end. Throws
// Error(kInvalidArgument) if there are not as many as --tp-size or --dp-size, or MPI cannot be used, and
// DeviceError if they are to run on GPUs and one has none of its own.
void JoinRanks(ModelFlags& flags);

// For LoadRunner.
std::shared_ptr<Collective> RanksOf(const ModelFlags& flags);

// What errors of this process begin with: "quire: error:", and of ranks other than 0 "quire: rank 2: error:".
std::string ErrorPrefix();

}  // namespace quire::cli

#endif  // QUIRE_CLI_RANKS_H_
