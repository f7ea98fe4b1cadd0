// Steps of one model on several ranks of this process, each with a device and a thread of its own.
#ifndef QUIRE_RUNNER_LOCAL_RANKS_DEVICE_H_
#define QUIRE_RUNNER_LOCAL_RANKS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "device/collective.h"
#include "kernels/weight.h"
#include "runner/memory_plan.h"
#include "runner/runner_options.h"

namespace quire {

// What rank `rank` has loaded of its `own` bytes, as so much of what rank 0 loads: all of it when the last
// rank has all.
LoadProgress ProgressOfRank(const LoadProgress& progress, int32_t rank,
                            const RunnerOptions& options, ByteOffset own, ByteOffset first);

// The options of the other ranks: the pool is that of rank 0's plan, which all have room for.
RunnerOptions OptionsOfOthers(const RunnerOptions& options, const MemoryPlan& plan);

// The other ranks' devices, behind rank 0's. `Device` has Follow().
template <class Device>
class LocalFollowers {
 public:
  // make(rank) is called on the thread of that rank, one after the other, since all read one WeightSource.
  // If one throws, so does this, once the threads have ended. `host` is rank 0's.
  using Make = std::function<std::unique_ptr<Device>(int32_t rank)>;
  LocalFollowers(Collective& host, const Make& make)
      : followers_(static_cast<size_t>(host.size()) - 1) {
    try {
      for (int32_t rank = 1; rank < host.size(); ++rank) {
        std::promise<void> made;
        std::future<void> is_made = made.get_future();
        threads_.emplace_back(
            [&follower = followers_[static_cast<size_t>(rank) - 1], &make,
             rank](std::promise<void> promise) {
              try {
                follower = make(rank);
              } catch (...) {
                promise.set_exception(std::current_exception());
                return;
              }
              Device* const device = follower.get();
              promise.set_value();
              device->Follow();
            },
            std::move(made));
        is_made.get();
      }
    } catch (const std::exception& error) {
      host.Fail(error.what());
      Join();
      throw;
    }
  }
  ~LocalFollowers() { Join(); }
  LocalFollowers(const LocalFollowers&) = delete;
  LocalFollowers& operator=(const LocalFollowers&) = delete;

  // Returns when all have been told to end, or have failed, and have ended.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  // Stay until all threads have ended: ranks read each other's memory.
  std::vector<std::unique_ptr<Device>> followers_;
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_LOCAL_RANKS_DEVICE_H_
