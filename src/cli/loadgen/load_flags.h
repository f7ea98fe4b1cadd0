// The flags of `quire bench --url`.
#ifndef QUIRE_CLI_LOADGEN_LOAD_FLAGS_H_
#define QUIRE_CLI_LOADGEN_LOAD_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/loadgen/load_client.h"
#include "cli/loadgen/load_run.h"
#include "cli/loadgen/workload.h"

namespace quire::cli {

struct LoadFlags {
  LoadTarget target = {};  // an empty URL: no server is to be loaded
  WorkloadOptions workload = {.input = {.min = 256, .max = 256}, .output = {.min = 64, .max = 64}};
  std::optional<std::vector<int64_t>> concurrency = {};
  std::optional<double> request_rate = {};
  std::optional<int64_t> num_requests = {};
  std::optional<double> duration = {};
  int64_t warmup = 1;
  bool no_ignore_eos = false;
  bool insecure = false;
  std::string plot = {};
};

// What --help shows them under, and what tells them from the flags of a local run.
inline constexpr const char* kLoadGroup = "Loading a server (with --url)";

// --input-len, --output-len and --json are the subcommand's own. `flags` must outlive the reader.
void AddLoadFlags(FlagReader& reader, LoadFlags& flags);

// The runs that are asked for, one after the other. Throws Error(kInvalidArgument) if flags
// contradict each other.
std::vector<LoadShape> MakeShapes(const LoadFlags& flags);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_FLAGS_H_
