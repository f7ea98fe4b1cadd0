// A thread for each of several groups that wait for each other: unlike the parts of a parallel loop, all are
// under way at the same time.
#ifndef QUIRE_BASE_GROUP_THREADS_H_
#define QUIRE_BASE_GROUP_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace quire {

// Not for two threads at once.
class GroupThreads {
 public:
  // Of one group there is no thread but the caller's.
  explicit GroupThreads(size_t num_groups);
  ~GroupThreads();
  GroupThreads(const GroupThreads&) = delete;
  GroupThreads& operator=(const GroupThreads&) = delete;

  // fn(0), fn(1), ..., all at once, the first on the caller's thread; returns when all have returned. `fn`
  // throws nothing. Takes no memory.
  void Run(FunctionRef<void(size_t group)> fn);

 private:
  void ThreadMain(size_t group);

  // Invariants, under mutex_: fn_ is called once by every thread for each of num_runs_, and `num_busy_`
  // threads have yet to return from it.
  std::mutex mutex_;
  std::condition_variable begins_, ended_;
  const FunctionRef<void(size_t)>* fn_ = nullptr;
  int64_t num_runs_ = 0;
  size_t num_busy_ = 0;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;  // of groups 1, 2, ...
};

}  // namespace quire

#endif  // QUIRE_BASE_GROUP_THREADS_H_
