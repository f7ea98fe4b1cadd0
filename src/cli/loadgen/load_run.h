// When the requests of a load begin: so many at a time, or so many a second.
#ifndef QUIRE_CLI_LOADGEN_LOAD_RUN_H_
#define QUIRE_CLI_LOADGEN_LOAD_RUN_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "cli/loadgen/load_client.h"
#include "cli/loadgen/load_record.h"

namespace quire::cli {

// Requests begin until one of the limits is reached; all that began are awaited.
struct LoadShape {
  int64_t concurrency = 0;  // closed loop: so many at a time, each followed by the next; or
  double rate = 0;          // open loop: so many a second, however many that puts under way
  int64_t max_requests = std::numeric_limits<int64_t>::max();
  double max_seconds = std::numeric_limits<double>::infinity();
};

struct LoadProgress {
  int64_t num_begun = 0;
  int64_t num_done = 0;
  int64_t num_failed = 0;  // of those done
};

struct LoadResult {
  LoadShape shape = {};
  std::vector<RequestRecord> records = {};  // in the order of their beginning
  double seconds = 0;                       // from the beginning to the end of the last one
  int64_t peak_concurrency = 0;
  bool was_stopped = false;
};

struct LoadHooks {
  // Does one request; `record` has its index and begin, and comes back with everything.
  std::function<asio::awaitable<RequestRecord>(RequestRecord record)> send;
  // Open loop: seconds until the next arrival.
  std::function<double()> next_gap;
  // Called now and then, and at the end. True ends the run: nothing begins any more.
  std::function<bool(const LoadProgress&)> on_tick;
  // Called once when a run is ended: makes `send` come back soon.
  std::function<void()> stop;
};

inline constexpr std::chrono::milliseconds kTick{50};  // 20 times a second looks smooth

// Runs `io` on this thread until all is done. `clock` should be new. What a hook throws ends the
// run and is thrown from here.
LoadResult RunLoad(asio::io_context& io, const LoadShape& shape, const RunClock& clock,
                   const LoadHooks& hooks);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_RUN_H_
